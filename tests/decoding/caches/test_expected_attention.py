"""Expected attention: what it keeps is what NumPy keeps, from rotated moments."""

import numpy as np
import pytest

from decoding import Spec
from decoding.conformance import peaked
from models.errors import MethodError
from tests.decoding.caches import oracle

pytestmark = [pytest.mark.kv, pytest.mark.long]

ARGUMENTS = {"budget": 12, "sinks": 2, "future": 16, "prompt_every": 16}
SPEC = Spec("caches/expected_attention", **ARGUMENTS)


def turned(x, at):
    """Rotate vectors [..., d] by the position `at`, as the model does, in float64."""
    half = peaked.DIM // 2
    angle = at * np.asarray(peaked.config().ropes[0].frequencies)
    a, b = x[..., :half], x[..., half:]
    cos, sin = np.cos(angle), np.sin(angle)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def value_of(covariance=True, future=16):
    def value(heads, g, t, length):
        if t < 2 or t == length - 1:
            return np.inf
        raw = np.stack([turned(heads.q[i, g], -i) for i in range(2, length)])
        mean = raw.mean(0)  # [R, d]
        middle = raw - mean
        spread = np.einsum("nri,nrj->rij", middle, middle) / len(raw)
        ahead = range(length, length + future)
        matrix = np.mean([turned(np.eye(peaked.DIM), at) for at in ahead], 0)
        mean, spread = mean @ matrix, matrix.T @ spread @ matrix
        seen = [j for j in heads.kept[g] if j >= 2]
        k = heads.k[seen, g]
        s = mean @ k.T
        if covariance:
            s = s + np.einsum("rij,ni,nj->rn", spread, k, k) / 2
        p = np.exp(s - s.max(-1, keepdims=True))
        p[p < np.finfo(np.float32).tiny] = 0  # peaked attention: equal in float32
        share = (p / p.sum(-1, keepdims=True)).mean(0)
        at = seen.index(t)
        return share[at] * np.linalg.norm(heads.v[t, g])

    return value


def test_it_keeps_what_is_expected():
    """Three prompts; planted: no covariance, and the next position alone."""
    assert oracle.differs(SPEC, value_of(), budget=12) == 0
    assert oracle.differs(SPEC, value_of(covariance=False), budget=12) > 0
    assert oracle.differs(SPEC, value_of(future=1), budget=12) > 0


def test_the_mean_alone():
    spec = Spec("caches/expected_attention", **ARGUMENTS, covariance=False)
    assert oracle.differs(spec, value_of(covariance=False), budget=12) == 0


def test_bad_numbers():
    with pytest.raises(MethodError, match="future=0, sinks=4"):
        part = Spec("caches/expected_attention", future=0)
        part.build({"model": peaked.functions()})
