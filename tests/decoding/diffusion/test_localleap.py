"""A lower threshold near anchors."""

import numpy as np
import pytest

from decoding import Spec
from decoding.diffusion import localleap
from models.errors import MethodError
from tests.decoding.diffusion import writing


def rule(high, low, radius):
    """Near an open position of at least `high`, `low` is enough."""

    def choose(view):
        conf = {p: np.exp(np.float32(g.logp)) for p, g in view.guesses.items()}
        anchors = [p for p, c in conf.items() if c >= high]
        near = lambda p: any(abs(p - a) <= radius for a in anchors)
        return {p for p, c in conf.items() if c >= (low if near(p) else high)}

    return choose


def test_anchors_lower_the_threshold():
    lm = writing.lm(eos=(), scale=2.0)
    part = lambda **numbers: Spec("diffusion/localleap", radius=1, **numbers)
    out = writing.written(lm, part(threshold=0.6, near=0.3))
    assert writing.same(out, writing.expected(lm, rule(0.6, 0.3, 1)))
    # Planted: a wider neighbourhood.
    wide = writing.expected(lm, rule(0.6, 0.3, 4))
    assert not writing.same(out, wide)
    # The default radius reaches beyond the block of five on both sides.
    own = writing.written(lm, Spec("diffusion/localleap", threshold=0.6, near=0.3))
    assert writing.same(own, wide)
    same = writing.written(lm, part(threshold=0.6, near=0.6))
    threshold = writing.written(lm, Spec("diffusion/fast_dllm", threshold=0.6))
    assert same.tokens == threshold.tokens
    assert same.stats.target_calls.tolist() == threshold.stats.target_calls.tolist()


def test_refused_numbers():
    with pytest.raises(MethodError, match=r"near=0.95"):
        localleap.scheduler(near=0.95)
