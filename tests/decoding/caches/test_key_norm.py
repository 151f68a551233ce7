"""Key norms: what is kept is what NumPy keeps."""

import numpy as np
import pytest

from decoding import Spec
from tests.decoding.caches import oracle

pytestmark = [pytest.mark.kv, pytest.mark.long]

SPEC = Spec("caches/key_norm", budget=12)


def test_it_keeps_the_smallest_keys():
    """Three prompts; planted: the largest."""
    norm = lambda heads, g, t: np.linalg.norm(heads.k[t, g])
    small = lambda heads, g, t, n: np.inf if t == n - 1 else -norm(heads, g, t)
    large = lambda heads, g, t, n: np.inf if t == n - 1 else norm(heads, g, t)
    assert oracle.differs(SPEC, small, budget=12) == 0
    assert oracle.differs(SPEC, large, budget=12) > 0
