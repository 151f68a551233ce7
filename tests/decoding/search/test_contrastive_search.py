"""decoding/search/contrastive_search.py, against a text of its own in numpy and HF."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding
from decoding import Method, Spec
from decoding.conformance import kit
from models.base import ALL, Block, Visibility, pack_bits
from models.errors import MethodError
from tests.decoding.loops.test_copies import lm
from tests.decoding.search import golden

PROMPTS = [[1, 2, 3], [4], list(range(1, 40))]
TARGET = lm(3, 2, 0)
CALL = jax.jit(lambda *inputs: TARGET.model(*inputs, ("norm",)))


def method(**arguments) -> Method:
    return Method(search=Spec("search/contrastive_search", **arguments))


def read(text: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """The law after a text, and the directions of all its states."""
    size = 64
    padded = jnp.asarray([text + [0] * (size - len(text))])
    index = jnp.arange(size)[None]
    bits = pack_bits(jnp.tril(jnp.ones((size, size), bool)))[None]
    block = Block(padded, index, index, Visibility(jnp.zeros(1, int), bits), None, ALL)
    cache = TARGET.model.init_cache(1, size, jnp.float32)
    out, _ = CALL(TARGET.params, cache, block)
    logits = np.asarray(out.logits[0, len(text) - 1], np.float64)
    states = np.asarray(out.hidden["norm"][0, : len(text)], np.float64)
    p = np.exp(logits - logits.max())
    return p / p.sum(), states / np.linalg.norm(states, axis=-1, keepdims=True)


def by_hand(prompt: list[int], new: int, k: int, alpha: float, blind=False):
    """Every candidate is read behind the whole text. `blind`: to the prompt."""
    text = list(prompt)
    for _ in range(new):
        p, states = read(text)
        before = states[len(prompt) - 1 :] if blind else states
        scores = {}
        for token in np.argsort(-p)[:k]:
            own = read([*text, int(token)])[1][-1]
            scores[int(token)] = (1 - alpha) * p[token] - alpha * (before @ own).max()
        text.append(max(scores, key=scores.__getitem__))
    return text[len(prompt) :]


def test_equals_a_search_by_hand():
    """Three prompts, one of them in two chunks; planted: the prompt is not compared."""
    found = decoding.generate(
        TARGET, PROMPTS, method(k=4, alpha=0.6), max_new_tokens=12, prefill_chunk=24
    )
    want = [by_hand(p, 12, 4, 0.6) for p in PROMPTS]
    assert found.tokens == want
    assert found.stats.rounds == 13 and found.guarantee == "LOSSY"
    assert by_hand(PROMPTS[2], 12, 4, 0.6, blind=True) != want[2]


@pytest.mark.long
def test_without_likeness_it_is_greedy():
    greedy = decoding.generate(TARGET, PROMPTS, max_new_tokens=20, width="paper")
    for fields in ({"alpha": 0.0}, {"k": 1}):
        out = decoding.generate(TARGET, PROMPTS, method(**fields), max_new_tokens=20)
        assert out.tokens == greedy.tokens
    other = decoding.generate(TARGET, PROMPTS, method(), max_new_tokens=20)
    assert other.tokens != greedy.tokens  # planted: the paper's alpha


def test_a_text_ends_at_a_token_that_ends_it():
    lm = types.SimpleNamespace(**vars(TARGET))
    free = decoding.generate(lm, PROMPTS, method(), max_new_tokens=20)
    end = free.tokens[0][5]
    out = decoding.generate(
        lm, PROMPTS, method(), max_new_tokens=20, stop_token_ids=[end]
    )
    for text, whole in zip(out.tokens, free.tokens):
        size = whole.index(end) + 1 if end in whole else len(whole)
        assert text == whole[:size]
    assert out.finish_reason[0] == "stop"


@pytest.mark.long
@pytest.mark.parametrize("k", [2, 4, 8])
def test_equals_hf(k):
    wrong, count, _ = golden.differences(
        "search_groups",
        "contrastive",
        lambda columns: columns[:, 1] == k,
        lambda case: method(k=k, alpha=float(case[2])),
        lambda case: None,
        lambda case: 1,
    )
    assert wrong == 0 and count >= 10


@pytest.mark.parametrize(
    ("fields", "words"),
    [({"k": 0}, "k=0"), ({"alpha": 1.5}, "alpha=1.5 is outside")],
)
def test_refuses(fields, words):
    with pytest.raises(MethodError, match=words):
        decoding.generate(kit.TARGET, [[1]], method(**fields))
