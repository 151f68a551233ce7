"""The bound's estimator, by enumeration on the masked toy."""

import itertools
import math

import numpy as np
import pytest

from models.errors import DataError
from models.synthetic import toy_masked
from training.evaluation import diffusion_bound

WINDOW = np.array([2, 0, 3, 1])  # the first token is given
LM, PARAMS = toy_masked.model(5, seed=1)
KNOWN: dict[tuple, np.ndarray] = {}


def law(noised, clean, block=0):
    """The toy's law of each position, [n, 4, 5], computed once for each row."""

    def one(row, text):
        sees = lambda p: 4
        if block:
            sees = lambda p: min((p // block + 1) * block, 4)
        key = (*row, *text, block)
        if key not in KNOWN:
            out = np.full((4, 5), -np.inf, np.float32)
            for i in range(4):
                # Clean text before the block, the noised block, nothing behind.
                begin = i // block * block if block else 0
                tokens = [*text[:begin], *row[begin:]]
                found = toy_masked.Reference(LM.config, PARAMS)
                out[i] = found.run(tokens, range(4), sees)[i]
            out[:, LM.config.mask_token] = -np.inf
            KNOWN[key] = out
        return KNOWN[key]

    return np.stack([one(tuple(a), tuple(b)) for a, b in zip(noised, clean)])


def nats(masked, block=0):
    """-log p of each token with these masked, float[4]."""
    noised = np.where(masked, LM.config.mask_token, WINDOW)[None]
    logits = law(noised, WINDOW[None], block)[0]
    top = np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1)) + logits.max(1)
    return top - logits[np.arange(4), WINDOW]


def over_orders(places, block=0):
    """The mean over all orders of the sum of -log p of each token in its turn."""
    total = 0.0
    for order in itertools.permutations(places):
        masked = np.zeros(4, bool)
        masked[list(places)] = True
        for place in order:
            total += nats(masked, block)[place]
            masked[place] = False
    return total / math.factorial(len(places))


def enumerated(weights):
    """The estimator's expectation: k even, places even."""
    groups, total = diffusion_bound.grouped(4), 0.0
    for k in (1, 2, 3):
        for chosen in (subsets := list(itertools.combinations((1, 2, 3), k))):
            masked = np.zeros((1, 4), bool)
            masked[0, list(chosen)] = True
            share = weights(masked, groups)[0]
            total += (share * nats(masked[0])).sum() / len(subsets) / 3
    return total


def test_the_estimator_is_unbiased():
    """Its expectation is the mean over all orders. Planted: weight 1 / k."""
    want = over_orders((1, 2, 3))
    assert enumerated(diffusion_bound.weights) == pytest.approx(want, rel=1e-5)
    planted = lambda masked, groups: masked / masked.sum(1, keepdims=True)
    assert abs(enumerated(planted) - want) > 0.5


@pytest.mark.parametrize(("block", "parts"), [(0, [(1, 2, 3)]), (2, [(1,), (2, 3)])])
def test_the_bound_of_windows(block, parts):
    """24,000 draws of deviation 1.3: 4 standard errors; by block their sum."""
    want = sum(over_orders(places, block) for places in parts)
    of = lambda noised, clean: law(noised, clean, block)
    about = (LM.config.mask_token, 6, block, 24_000, 24_000)
    found = diffusion_bound.bound(of, [WINDOW], *about)
    assert found.nats_per_token == pytest.approx(want / 3, abs=0.034)
    assert found.bits_per_byte == pytest.approx(
        3 * found.nats_per_token / math.log(2) / 6
    )
    assert (found.tokens, found.draws) == (3, 24_000)


def test_numbers_of_masks_are_stratified():
    """Each draw has all numbers over the offsets; one offset has all, evenly.

    Planted: halves rounded to even numbers favour some.
    """
    for size, draws in ((3, 128), (5, 10), (7, 4)):
        every = np.stack(
            [diffusion_bound.counts(size, draws, at) for at in range(size)]
        )
        assert (np.sort(every, 0) == np.arange(1, size + 1)[:, None]).all()
        for row in every:
            found = np.bincount(row, minlength=size + 1)[1:]
            assert found.max() - found.min() <= 1
    rounded = [round(at + 0.5) % 4 for at in range(4)]
    assert len(set(rounded)) < 4


def test_masks_are_where_they_may_be():
    groups = diffusion_bound.grouped(9, 4)
    assert groups.tolist() == [-1, 0, 0, 0, 1, 1, 1, 1, 2]
    masked = diffusion_bound.masks(groups, 64, np.random.default_rng(0))
    assert not masked[:, 0].any() and masked[:, 8].all()
    share = diffusion_bound.weights(masked, groups)
    assert (share[:, 1:4].sum(1) == pytest.approx(3)) and (share[~masked] == 0).all()


def test_hits_by_rate():
    """A law that knows the text hits always, one that is blind as by chance."""
    windows = [WINDOW, WINDOW[::-1]]
    knows = lambda noised, clean: np.eye(5)[clean]
    assert diffusion_bound.hits(knows, windows, 4) == {0.15: 1.0, 0.5: 1.0, 0.85: 1.0}
    blind = lambda noised, clean: np.eye(5)[np.full_like(clean, 4)]
    assert set(diffusion_bound.hits(blind, windows, 4).values()) == {0.0}


def test_windows_are_of_one_length():
    with pytest.raises(DataError, match=r"windows of \[3, 4\] tokens"):
        diffusion_bound.bound(law, [WINDOW, WINDOW[:3]], 4, 6)
