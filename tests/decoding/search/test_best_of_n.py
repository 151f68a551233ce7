"""decoding/search/best_of_n.py: the best samples of `generate(n=)`, and its law."""

import collections
import itertools

import numpy as np
import pytest

import decoding
from decoding import Method, Spec
from decoding.conformance import kit
from decoding.hypotheses.rank import Sample
from decoding.search import best_of_n
from models.errors import MethodError
from models.synthetic import toy
from tests.decoding.search.rows import DRAFTERS, HEAT, LM, NEW, N, p_value, samples

PROMPT, TOKENS = [1, 2], 2  # of the law


def taste(tokens) -> float:
    """A reward without ties among texts of `TOKENS` tokens."""
    return float(sum((7 * t + 3) % 11 * 11**i for i, t in enumerate(tokens)))


def by_taste(found):
    return [taste(s.tokens) for s in found]


@pytest.mark.parametrize("drafter", ["plain", "tree", "model"])
def test_the_best_of_the_samples(drafter):
    """Under plain decoding and two drafters; on equal rewards the likelier text."""
    method = Method(search=Spec("search/best_of_n", samples=N), **DRAFTERS[drafter])
    fields = {"lm": LM, "n": N, "max_new_tokens": NEW}
    coarse = lambda found: [len(s.tokens) // 8 for s in found]
    out = kit.generate(method, HEAT, reward=coarse, **fields)
    full = samples()
    for texts, given, best, scores in zip(
        full.tokens, full.logprobs, out.tokens, out.scores
    ):
        key = lambda i, t=texts, g=given: (-(len(t[i]) // 8), -sum(g[i]))
        order = sorted(range(N), key=key)
        assert best == [texts[i] for i in order]
        assert scores == [len(texts[i]) // 8 for i in order]
        ties = sorted(range(N), key=lambda i, t=texts: -(len(t[i]) // 8))
        if drafter == "plain" and texts is full.tokens[0]:
            assert best != [texts[i] for i in ties]  # planted: ties by place


def expected(each: int, heat: float) -> dict[tuple, float]:
    """F(y)^N - F(y-)^N over all texts of `TOKENS` tokens, in the reward's order."""
    law = {}
    for text in itertools.product(range(kit.VOCAB), repeat=TOKENS):
        chance = 1.0
        for i, token in enumerate(text):
            logits = np.float64(toy.logits(kit.TARGET.params, [*PROMPT, *text[:i]]))
            weights = np.exp((logits - logits.max()) / heat)
            chance *= weights[token] / weights.sum()
        law[text] = chance
    total, best = 0.0, {}
    for text in sorted(law, key=taste):
        upto = total + law[text]
        best[text], total = upto**each - total**each, upto
    return best


def drawn(each: int, heat: float, count: int, seeds=None) -> collections.Counter:
    """Count the best texts of `count` prompts."""
    method = Method(search=Spec("search/best_of_n", samples=each))
    found: collections.Counter = collections.Counter()
    for at in range(0, count, 4096):
        seed = [at + i for i in range(4096)] if seeds is None else seeds(at)
        out = decoding.generate(
            *(kit.TARGET, [PROMPT] * 4096, method, TOKENS, heat),
            seed=seed,
            reward=by_taste,
        )
        found.update(map(tuple, out.tokens))
    return found


@pytest.mark.parametrize("heat", [0.9, 1.0])
def test_the_law(heat):
    """n = 4,096 prompts, 3 samples each; level 1e-4. The long test takes 200,704."""
    assert p_value(drawn(3, heat, 4096), expected(3, heat)) > 1e-4
    # Planted: the samples of a prompt share their noise, so that there is but one.
    assert p_value(drawn(1, heat, 4096), expected(3, heat)) < 1e-4


@pytest.mark.long
@pytest.mark.parametrize("heat", [0.9, 1.0])
def test_the_law_at_length(heat):
    """n = 49 * 4,096 = 200,704 prompts, 3 samples each; level 1e-3."""
    assert p_value(drawn(3, heat, 49 * 4096), expected(3, heat)) > 1e-3


def test_refuses():
    with pytest.raises(MethodError, match="samples=0"):
        best_of_n.rank(0)
    method = Method(search=Spec("search/best_of_n", samples=2))
    with pytest.raises(MethodError, match="pass reward="):
        kit.generate(method, HEAT)
    with pytest.raises(MethodError, match="no search that chooses by it"):
        kit.generate(Method(), HEAT, reward=by_taste)
    with pytest.raises(MethodError, match="reads no reward"):
        kit.generate(Method(search=Spec("search/beam")), reward=by_taste)
    twice = [Spec("rewards/likelihood"), Spec("rewards/length", target=3)]
    with pytest.raises(MethodError, match="values texts by itself"):
        kit.generate(method, HEAT, reward=twice)
    with pytest.raises(MethodError, match="is no part of rewards"):
        kit.generate(method, HEAT, reward=3)


def test_by_hand():
    found = [
        Sample([1], None, [-1.0], True, value=value)
        for value in (0.5, 2.0, float("-inf"), 2.0)
    ]
    found[3] = found[3]._replace(logprobs=[-0.5])
    assert best_of_n.rank(4).order(found) == [
        *((3, 2.0), (1, 2.0), (0, 0.5), (2, float("-inf")))
    ]
