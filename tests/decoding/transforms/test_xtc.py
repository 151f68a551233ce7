"""decoding/transforms/xtc.py against the official code's coin."""

import functools

import numpy as np
import pytest
from scipy import stats

from decoding.conformance import kit
from decoding.transforms import xtc
from models.errors import MethodError, PromptError
from tests.decoding.transforms.samplers import law

make = functools.partial(
    xtc.transform, vocab_size=8, eos=(7,), tokenizer=kit.Letters(), spared=(6,)
)
P = np.array([0.3, 0.05, 0.22, 0.14, 0.11, 0.18 - 1e-4, 1e-4, 0.0])
DRAWS = 200_000


def thrown(p, threshold: float, probability: float, seed: int) -> np.ndarray:
    """Counts of draws, each with its coin, by sorting as the official code does."""
    rng = np.random.default_rng(seed)
    order = np.argsort(-p)
    removed = np.append(p[order][1:] >= threshold, False)
    left = p.copy()
    left[order[removed]] = 0
    heads = rng.binomial(DRAWS, probability)
    both = (p, DRAWS - heads), (left / left.sum(), heads)
    return sum(rng.multinomial(n, q) for q, n in both)


def p_value(q, threshold=0.1, probability=0.5) -> float:
    counts = thrown(P, threshold, probability, 0)
    q, there = np.asarray(q, np.float64), q > 0
    assert counts[~there].sum() == 0
    expected = q[there] / q[there].sum() * DRAWS
    return stats.chisquare(counts[there], expected).pvalue


@pytest.mark.parametrize(("threshold", "probability"), [(0.1, 0.5), (0.2, 0.3)])
def test_the_law_is_that_of_the_coin(threshold, probability):
    """chi-squared at n = 200,000, level 1e-4, seed 0."""
    q = law(make(threshold=threshold, probability=probability), P)
    assert p_value(q, threshold, probability) > 1e-4


def test_fault_another_coin():
    """Planted: a coin of 0.48; top choices dropped with their least one."""
    assert p_value(law(make(probability=0.48), P)) < 1e-4
    all_dropped = np.where(P >= 0.1, 0, P)
    with pytest.raises(AssertionError):
        assert p_value(0.5 * P + 0.5 * all_dropped / all_dropped.sum()) > 1e-4


def test_by_hand():
    q = law(make(probability=1.0), P)
    assert np.flatnonzero(q).tolist() == [1, 4, 6]  # 4 is the least top choice
    np.testing.assert_allclose(q[4] / q[1], 2.2, rtol=1e-4)
    np.testing.assert_allclose(law(make(probability=0.0), P), P, atol=1e-6)
    np.testing.assert_allclose(law(make(threshold=0.6), P), P, atol=1e-6)


def test_nothing_is_dropped_where_a_spared_token_would_be():
    for token in (6, 7):  # a line break, the end of the text
        p = P.copy()
        p[[0, token]] = p[[token, 0]]
        np.testing.assert_allclose(law(make(), p), p, atol=1e-6)
    assert not np.allclose(law(make(spared=()), P[[6, 1, 2, 3, 4, 5, 0, 7]]), P)


@pytest.mark.parametrize("name", ["threshold", "probability"])
def test_refuses(name):
    with pytest.raises(MethodError, match=f"{name}=1.5"):
        make(**{name: 1.5})
    with pytest.raises(PromptError, match="spared holds 9"):
        make(spared=(9,))
