"""exact-extract against all spans, one by one, on a toy and on a transformer."""

import functools
import types

import jax
import numpy as np
import pytest

import decoding
from decoding.conformance import kit
from decoding.serving import exact_extract
from models import transformer
from models.errors import MethodError, PromptError
from models.synthetic import toy

TOY = kit.model(0, ending=1.0)
RNG = np.random.default_rng(0)
PASSAGES = [RNG.integers(0, kit.EOS, size).tolist() for size in (9, 5, 1, 12)]


@functools.cache
def law(text: tuple) -> np.ndarray:
    """The log-probabilities of the token after a text."""
    logits = np.asarray(toy.logits(TOY.params, list(text)), np.float64)
    return logits - np.logaddexp.reduce(logits)


def score_by_hand(prompt, span, end=kit.EOS) -> float:
    """The log-probability of a span and its end, one token after the other."""
    total, text = 0.0, tuple(prompt)
    for token in [*span, end]:
        total += law(text)[token]
        text += (token,)
    return total


def spans(passage, longest):
    ends = lambda i: range(i + 1, min(i + longest, len(passage)) + 1)
    return [passage[i:j] for i in range(len(passage)) for j in ends(i)]


@pytest.mark.parametrize("longest", [1, 4, None])
def test_equals_all_spans_one_by_one(longest):
    """Planted: the end left out, or spans of another length, are another answer."""
    results = exact_extract.extract(TOY, kit.PROMPTS, PASSAGES, longest)
    without = []
    for prompt, passage, one in zip(kit.PROMPTS, PASSAGES, results):
        every = spans(passage, longest or len(passage))
        scores = [score_by_hand(prompt, span) for span in every]
        best = int(np.argmax(scores))
        assert one.best.tokens == every[best]
        assert one.best.score == pytest.approx(scores[best], abs=1e-4)
        assert passage[one.best.start : one.best.stop] == one.best.tokens
        assert sum(one.best.logprobs) == pytest.approx(one.best.score)
        assert one.best.text == kit.Letters().decode(one.best.tokens)
        means = [s / (len(span) + 1) for s, span in zip(scores, every)]
        assert one.by_length.tokens == every[int(np.argmax(means))]
        bare = [score_by_hand(prompt, s[:-1], s[-1]) for s in every]
        without.append(every[int(np.argmax(bare))])
    assert without != [one.best.tokens for one in results]


def test_the_chunk_changes_nothing():
    """But the calls; planted: another prompt changes the scores."""
    results = [
        exact_extract.extract(TOY, kit.PROMPTS[2:3], PASSAGES[:1], chunk=chunk)[0]
        for chunk in (1, 2, 5, 9, None)
    ]
    for one in results:
        assert one.best[:4] == results[0].best[:4]
        assert one.by_length[:4] == results[0].by_length[:4]
        np.testing.assert_allclose(
            one.best.logprobs, results[0].best.logprobs, atol=1e-5
        )
    assert [one.calls for one in results] == [10, 6, 3, 2, 2]
    other = exact_extract.extract(TOY, kit.PROMPTS[3:4], PASSAGES[:1])[0]
    assert abs(other.best.score - results[0].best.score) > 1e-3


def test_greedy_is_never_above_it():
    """Where its answer is a span; planted: in a passage without it, it may be."""
    ended = above = 0
    for seed in range(4):
        lm = kit.model(seed, ending=1.0)
        out = decoding.generate(lm, kit.PROMPTS, max_new_tokens=6)
        answers = [text[:-1] or [0] for text in out.tokens]
        passages = [([5, *a] + [6] * 8)[:8] for a in answers]
        results = exact_extract.extract(lm, kit.PROMPTS, passages, 5)
        without = [[5, 6] * 4] * len(kit.PROMPTS)
        others = exact_extract.extract(lm, kit.PROMPTS, without, 5)
        rows = zip(out.tokens, out.logprobs, results, others)
        for text, logprobs, one, other in rows:
            if len(text) > 1 and text[-1] == kit.EOS:
                assert sum(logprobs) <= one.best.score + 1e-4
                ended += 1
                above += sum(logprobs) > other.best.score + 1e-3
    assert ended > 3 and above > 0


def test_equal_spans_count_once_and_the_first_is_named():
    """Planted: a passage without the repetition."""
    (twice,) = exact_extract.extract(TOY, [[1]], [[3, 4, 5] * 3])
    (once,) = exact_extract.extract(TOY, [[1]], [[3, 4, 5, 3, 4]], 3)
    assert twice.best.start < 3
    if len(twice.best.tokens) <= 3:
        assert twice.best.tokens == once.best.tokens


CONFIG = transformer.Config(
    vocab_size=16,
    d_model=16,
    n_layers=2,
    n_heads=2,
    n_kv_heads=1,
    head_dim=8,
    d_ff=32,
    max_positions=128,
    ropes=(transformer.rope(8, 10000.0),),
    eos=(15,),
)


def test_branches_of_a_tree_are_texts_of_their_own():
    """On a transformer, whose cache is shared; planted: the scores of other spans."""
    model = transformer.transformer(CONFIG)
    params = jax.tree.map(lambda x: 3 * x, model.init(jax.random.key(0)))
    lm = types.SimpleNamespace(
        model=model, params=params, tokenizer=None, config=CONFIG
    )
    prompt, passage = [1, 2, 3, 4, 5], [7, 8, 9, 7, 3, 2]
    (one,) = exact_extract.extract(lm, [prompt], [passage], 3, chunk=4)
    assert one.best.text is None

    read = jax.jit(lambda text: transformer.forward(CONFIG, params, text).logits[0])

    def score(span):
        text = np.zeros((1, len(prompt) + 3), np.int32)
        text[0, : len(prompt) + len(span)] = [*prompt, *span]
        laws = np.asarray(jax.nn.log_softmax(read(text)), np.float64)
        after = [*span, 15]
        return sum(laws[len(prompt) - 1 + i, t] for i, t in enumerate(after))

    scores = {tuple(span): score(span) for span in spans(passage, 3)}
    assert tuple(one.best.tokens) == max(scores, key=scores.get)
    assert one.best.score == pytest.approx(max(scores.values()), abs=1e-4)
    assert sorted(scores.values())[-2] < max(scores.values()) - 1e-3


def test_other_ends():
    """The answer ends with a token of one's own; planted: EOS ends it."""
    (one,) = exact_extract.extract(TOY, [[1, 2]], PASSAGES[:1], ends=(6,))
    by_six = lambda span: score_by_hand([1, 2], span, 6)
    every = spans(PASSAGES[0], len(PASSAGES[0]))
    assert one.best.score == pytest.approx(max(map(by_six, every)), abs=1e-4)
    (eos,) = exact_extract.extract(TOY, [[1, 2]], PASSAGES[:1])
    assert abs(eos.best.score - one.best.score) > 1e-3


@pytest.mark.parametrize(
    ("prompts", "passages", "fields", "error", "words"),
    [
        ([[1]], [[1], [2]], {}, PromptError, "1 prompts and 2 passages"),
        ([[1]], [[]], {}, PromptError, "passage 0 is empty"),
        ([[1]], [[8]], {}, PromptError, "passage 0 has token 8"),
        ([[1]], [[2]], {"longest": 0}, MethodError, "longest=0"),
        ([[1]], [[2]], {"chunk": 0}, MethodError, "chunk=0"),
        ([[1]], [[2]], {"ends": (9,)}, MethodError, r"ends=\(9,\)"),
        ([[1]], [[2] * 2000], {}, PromptError, "lower longest"),
    ],
)
def test_refuses(prompts, passages, fields, error, words):
    with pytest.raises(error, match=words):
        exact_extract.extract(TOY, prompts, passages, **fields)
