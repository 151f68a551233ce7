"""A bound on the entropy."""

import numpy as np
import pytest

from decoding import Spec
from decoding.conformance import canvases
from decoding.diffusion import dparallel
from models.errors import MethodError
from tests.decoding.diffusion import writing


def entropy(guess):
    p = guess.probs[guess.probs > 0]
    return -(p * np.log(p)).sum()


def rule(most):
    def choose(view):
        low = {p for p, g in view.guesses.items() if entropy(g) <= most}
        return low | canvases.first(view.guesses, 1, lambda g: -entropy(g))

    return choose


def test_positions_of_little_entropy():
    lm = writing.lm("shifted")
    out = writing.written(lm, Spec("diffusion/dparallel", most=0.9))
    assert writing.same(out, writing.expected(lm, rule(0.9)))
    # Planted: the most confident one in place of that of least entropy.
    by_conf = lambda view: rule(-1.0)(view) and canvases.first(view.guesses, 1)
    least = writing.written(lm, Spec("diffusion/dparallel", most=0.0))
    assert writing.same(least, writing.expected(lm, rule(0.0)))
    assert not writing.same(least, writing.expected(lm, by_conf))


def test_refused_numbers():
    with pytest.raises(MethodError, match="most=-1"):
        dparallel.scheduler(most=-1)
