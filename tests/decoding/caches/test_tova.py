"""TOVA: what it keeps is what NumPy keeps, from the newest query of all heads."""

import numpy as np
import pytest

from decoding import Spec
from tests.decoding.caches import oracle

pytestmark = [pytest.mark.kv, pytest.mark.long]

ARGUMENTS = {"budget": 12, "every": 8, "prompt_every": 16}
SPEC = Spec("caches/tova", **ARGUMENTS)


def of_all_heads(heads, g, t, length):
    if t == length - 1:
        return np.inf
    seen, sums = zip(*(heads.column(h, length - 1) for h in range(len(heads.kept))))
    return sum(part[tokens.index(t)] for tokens, part in zip(seen, sums))


def of_own_heads(heads, g, t, length):
    seen, sums = heads.column(g, length - 1)
    return np.inf if t == length - 1 else sums[seen.index(t)]


def test_it_keeps_what_the_newest_query_sees():
    """Three prompts; planted: each KV head by its own queries, which is `by_head`."""
    assert oracle.differs(SPEC, of_all_heads, **ARGUMENTS) == 0
    assert oracle.differs(SPEC, of_own_heads, **ARGUMENTS) > 0
    apart = Spec("caches/tova", **ARGUMENTS, by_head=True)
    assert oracle.differs(apart, of_own_heads, **ARGUMENTS) == 0
