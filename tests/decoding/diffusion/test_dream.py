"""Quotas by noise level over the whole canvas, and the three orders."""

import numpy as np
import pytest

from decoding import Spec
from decoding.conformance import canvases
from decoding.diffusion import dream
from models.errors import MethodError
from tests.decoding.diffusion import writing


def entropy(guess):
    p = guess.probs[guess.probs > 0]
    return -(p * np.log(p)).sum()


def margin(guess):
    low, high = np.sort(guess.probs)[-2:]
    return high - low


VALUES = {
    "entropy": lambda g: -entropy(g),
    "maskgit_plus": lambda g: g.logp,
    "topk_margin": margin,
}


def rule(steps, order):
    """Every level in turn; those that commit nothing are passed over."""
    level = {"at": 0}

    def choose(view):
        masks = len(view.guesses)
        if view.total == 0:
            level["at"] = 0
        t = np.linspace(1, 1e-3, steps + 1)
        while True:
            i, level["at"] = level["at"], level["at"] + 1
            last = i == steps - 1
            quota = masks if last else int(masks * (1 - t[i + 1] / t[i]))
            if quota:
                return canvases.first(view.guesses, quota, VALUES[order])

    return choose


@pytest.mark.parametrize("order", ["entropy", "topk_margin"])
def test_quota_of_the_noise_level(order):
    lm = writing.lm("shifted")
    part = Spec("diffusion/dream", steps=6, order=order)
    out = writing.written(lm, part, planned=True)
    whole = lambda view, lo: view.canvas[1]
    oracle = writing.expected(lm, rule(6, order), whole)
    assert writing.same(out, oracle)
    # Planted: the confidence of the guess in place of the order's figure.
    other = writing.expected(lm, rule(6, "maskgit_plus"), whole)
    assert not writing.same(out, other)


def test_refused_arguments():
    with pytest.raises(MethodError, match="order='low_confidence'"):
        dream.scheduler(order="low_confidence")
