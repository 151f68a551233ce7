"""Figures of texts and differences of arms, by hand."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from decoding.serving import scoring
from experiments.studies import sampler_texts
from experiments.studies.sampler_texts import Direction, Text

TEXT = Text([1, 2, 3], [1, 2, 4, 1, 2, 4], [-1.0] * 3 + [-3.0] * 3, 1.0, [1] * 6)


def test_figures_by_hand():
    names = ("bits", "late", "drift", "distinct", "repeated", "top", "total")
    found = sampler_texts.figures([TEXT], *names)
    two = math.log(2)
    assert found["bits"] == pytest.approx([2 / two])
    assert found["late"] == pytest.approx([3 / two])
    assert found["drift"] == pytest.approx([2 / two])
    assert found["distinct"] == [3 / 5] and found["repeated"] == [0.0]
    assert found["top"] == [2 / 6] and found["total"] == [-12.0]
    looped = TEXT._replace(tokens=[5] * 8)
    assert sampler_texts.repeated(looped) == 1 - 1 / 5
    # Texts without tokens have no figure, rather than a wrong one.
    empty = Text([1], [], [], 0.0, [])
    found = sampler_texts.figures([empty], *names[:-1])
    assert set(map(tuple, found.values())) == {(None,)}


def by_search(prompt, tokens) -> float:
    """The longest suffix, by looking at every length and place."""
    whole, lengths = [*prompt, *tokens], []
    for end in range(len(prompt) + 1, len(whole) + 1):
        known = [
            n
            for n in range(1, end)
            for start in range(end - n)
            if whole[start : start + n] == whole[end - n : end]
        ]
        lengths.append(max(known, default=0))
    return float(np.mean(lengths))


def test_suffixes_against_search():
    assert sampler_texts.suffix(TEXT) == (1 + 2 + 0 + 1 + 2 + 3) / 6
    rng = np.random.default_rng(0)
    for _ in range(20):
        prompt, tokens = rng.integers(0, 3, 5).tolist(), rng.integers(0, 3, 9).tolist()
        text = TEXT._replace(prompt=prompt, tokens=tokens)
        assert sampler_texts.suffix(text) == pytest.approx(by_search(prompt, tokens))
    # Planted: the prompt is no part of the text.
    assert sampler_texts.suffix(TEXT._replace(prompt=[9])) < 1.5


def test_differences_are_paired():
    """Large spread, small differences; planted: the pairs out of order."""
    rng = np.random.default_rng(0)
    base = rng.normal(size=40) * 10
    arms = {
        "a": {"x": [None, *(base + 0.5 + 0.1 * rng.normal(size=40))]},
        "b": {"x": [1.0, *base]},
        "c": {"x": [1.0, *rng.permutation(base)]},
    }
    mean, margin, pairs = sampler_texts.gap(arms, Direction("", "x", "a", "b"))
    assert pairs == 40 and mean == pytest.approx(0.5, abs=0.1)
    assert sampler_texts.holds(mean, margin) == "yes"
    assert sampler_texts.holds(-mean, margin) == "no"
    mean, margin, _ = sampler_texts.gap(arms, Direction("", "x", "a", "c"))
    assert sampler_texts.holds(mean, margin) == "even"


def test_one_pair_decides_nothing():
    arms = {"a": {"x": [2.0]}, "b": {"x": [1.0]}}
    gap = sampler_texts.gap(arms, Direction("", "x", "a", "b"))
    assert gap == (1.0, math.inf, 1) and sampler_texts.holds(*gap[:2]) == "even"


def test_losses_do_not_depend_on_the_pass(lm):
    """Of two widths and numbers of rows; against the scores of the whole text."""
    texts = [
        Text([5, 6], [7, 8, 9], [], 0.0, None),
        Text([5], [6], [], 0.0, None),
        Text([4, 4], [], [], 0.0, None),
    ]
    found = sampler_texts.nats(lm, texts, 5, 2)
    again = sampler_texts.nats(lm, texts, 9, 3)
    assert found[2] is None and again[2] is None
    assert found[:2] == pytest.approx(again[:2], rel=1e-5)
    row, length = jnp.asarray([[5, 6, 7, 8, 9]]), jnp.asarray([5])
    given = scoring.score(lm.model, lm.params, row, length, 0).logprobs[0]
    assert found[0] == pytest.approx(-given[2:].mean(), rel=1e-5)
    assert found[0] != pytest.approx(-given[1:].mean(), rel=1e-3)  # planted
