"""SentenceKV: whole sentences by the mean query, the first tokens and the last."""

import ml_dtypes
import numpy as np
import pytest

from decoding import Spec
from decoding.conformance import kit
from models.errors import MethodError
from tests.decoding.caches import reading

pytestmark = pytest.mark.kv

FIELDS = {
    "budget": 14,
    "factor": 1.5,
    "sinks": 1,
    "recent": 2,
    "window": 4,
    "kernel": 3,
    "ends": (1, 4),
    "longest": 8,
    "sentences": 32,
    "full": 1,
}
SPEC = Spec("caches/sentence_kv", **FIELDS)


def sentences(tokens):
    """Return the ends of complete sentences of a text's beginning."""
    ends, opened = [], 0
    for i, token in enumerate(tokens):
        if token in FIELDS["ends"] or i + 1 - opened >= FIELDS["longest"]:
            opened = i + 1
            ends.append(opened)
    return ends


def taking_part(texts, g, n):
    """Return the tokens among the first n that may be selected."""
    read = texts.prompt - 1
    sums = np.zeros(read)
    for t in range(max(read - FIELDS["window"], 0), read):
        sums[: t + 1] += reading.weights(texts.q[1][t, g], texts.k[1][: t + 1, g]).sum(
            0
        )
    pooled = np.asarray([sums[max(j - 1, 0) : j + 2].max() for j in range(read)])
    pooled[max(read - FIELDS["window"], 0) :] = np.inf
    most = int(FIELDS["factor"] * FIELDS["budget"])
    return {*reading.best(pooled, most), *range(read, n)}


def chosen(texts, g, n, q, ends):
    """Return the selected tokens of the first n, by the mean query q [R, d]."""
    opened = ends[-1] if ends else 0
    begin = max(opened - FIELDS["recent"], 0)
    part, k = taking_part(texts, g, n), texts.k[1][:, g]
    scores = np.full(begin, -np.inf)
    for a, b in zip([0, *ends], ends):
        own = [j for j in range(a, b) if j in part]
        if own:
            value = (q @ k[own].mean(0)).max().astype(ml_dtypes.bfloat16)
            old = [j for j in own if j < begin]
            scores[old] = value
    scores[: FIELDS["sinks"]] = np.inf
    count = FIELDS["budget"] - FIELDS["recent"]
    picked = [j for j in reading.best(scores, count) if scores[j] > -np.inf]
    return picked, begin


def reads(texts, g, t, mean=True):
    ends, first = sentences(texts.tokens[:t]), texts.prompt - 1
    opened = ends[-1] if ends else 0
    since = max(opened, first)
    if opened <= first and first > 0 and not any(e > first for e in ends):
        since = first - 1  # the prompt's last query
    queries = texts.q[1][since : t + 1, g]
    q = queries.mean(0) if mean else queries[-1]
    picked, begin = chosen(texts, g, t, q, ends)
    return sorted({*picked, *range(begin, t + 1)})


def test_it_reads_whole_sentences():
    """Planted: the newest query in place of the mean."""
    assert reading.gap(SPEC, reads) < reading.CLOSE
    planted = lambda *at: reads(*at, mean=False)
    assert reading.gap(SPEC, planted) > 10 * reading.CLOSE


def test_sentences_are_complete():
    """Each selected sentence but one; planted: a token-wise choice."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 7, 48).tolist()
    texts = reading.Texts(
        (rng.normal(size=(48, 2, 2, 8)),) * 2,
        (rng.normal(size=(48, 2, 8)),) * 2,
        2,
        tokens,
    )
    ends = sentences(tokens[:47])

    def cut(picked, begin):
        parts = [
            {j for j in range(a, b) if j < begin} for a, b in zip([0, *ends], ends)
        ]
        picked = {*picked} - {*range(FIELDS["sinks"])}
        parts = [part - {*range(FIELDS["sinks"])} for part in parts]
        return sum(0 < len(part & picked) < len(part) for part in parts)

    picked, begin = chosen(texts, 0, 47, texts.q[1][46, 0], ends)
    assert (
        len(picked) == FIELDS["budget"] - FIELDS["recent"] and cut(picked, begin) <= 1
    )
    planted = reading.best((texts.q[1][46, 0] @ texts.k[1][:begin, 0].T).max(0), 12)
    assert cut(planted, begin) > 1


def test_punctuation_of_a_tokenizer():
    """Letters have none: named tokens are needed to end a sentence early."""

    class Marks(kit.Letters):
        def token_bytes(self):
            return [b"a", b"b.", b"\n\n", b"!", b" c"]

    policy = Spec("caches/sentence_kv").build({"tokenizer": Marks()})
    assert policy.room is not None
    with pytest.raises(MethodError, match="ends: name the tokens"):
        Spec("caches/sentence_kv").build({"tokenizer": None})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"budget": 64}, "budget=64: use more than the 64 slots"),
        ({"kernel": 4}, "an odd kernel"),
        ({"longest": 0}, "'longest': 0"),
        ({"factor": 0.5}, "factor=0.5: use at least 1"),
    ],
)
def test_bad_numbers(arguments, words):
    with pytest.raises(MethodError, match=words):
        Spec("caches/sentence_kv", ends=(1,), **arguments).build({})
