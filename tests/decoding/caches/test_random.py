"""Random slots: chosen by layer, head and token alone."""

import numpy as np
import pytest

from decoding import Spec
from decoding.cache_eviction import hashed
from tests.decoding.caches import oracle

pytestmark = [pytest.mark.kv, pytest.mark.long]

SPEC = Spec("caches/random", budget=12)


def drawn(seed):
    def value(heads, g, t, length):
        return np.inf if t == length - 1 else float(hashed.uniform(seed, 0, g, t))

    return value


def test_it_keeps_what_the_hash_chooses():
    """Three prompts; planted: another seed."""
    assert oracle.differs(SPEC, drawn(0), budget=12, exact=True) == 0
    assert oracle.differs(SPEC, drawn(1), budget=12, exact=True) > 0
    other = Spec("caches/random", budget=12, seed=1)
    assert oracle.differs(other, drawn(1), budget=12, exact=True) == 0
