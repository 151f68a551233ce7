"""Thresholds and the factor rule."""

import numpy as np
import pytest

from decoding import Spec
from decoding.diffusion import fast_dllm
from models.errors import MethodError
from tests.decoding.diffusion import writing


def conf(guess):
    return np.exp(np.float32(guess.logp))


def above(least):
    return lambda view: {p for p, g in view.guesses.items() if conf(g) >= least}


def factor(f):
    """The paper's rule: the largest n with (n + 1) (1 - c_n) <= f."""

    def rule(view):
        order = sorted(view.guesses, key=lambda p: (-view.guesses[p].logp, p))
        n = [
            i + 1
            for i, p in enumerate(order)
            if (i + 2) * (1 - conf(view.guesses[p])) <= f
        ]
        return set(order[: max(n, default=0)])

    return rule


def test_thresholds_in_one_program():
    """Thresholds are numbers of the state: another one compiles nothing."""
    lm = writing.lm()
    for least in (0.6, 0.35, 1.01):
        out = writing.written(lm, Spec("diffusion/fast_dllm", threshold=least))
        assert writing.same(out, writing.expected(lm, above(least)))
    assert out.stats.compile_seconds == 0
    assert writing.same(out, writing.expected(lm, writing.single))
    # Planted: a threshold that is not the one asked for.
    assert not writing.same(out, writing.expected(lm, above(0.6)))
    out = writing.written(lm, Spec("diffusion/fast_dllm", factor=1.2))
    assert out.stats.compile_seconds == 0
    assert writing.same(out, writing.expected(lm, factor(1.2)))


def test_refused_numbers():
    with pytest.raises(MethodError, match=r"threshold=-0.1"):
        fast_dllm.scheduler(threshold=-0.1)
