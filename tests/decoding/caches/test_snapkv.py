"""SnapKV: what it keeps is what NumPy keeps, from the prompt's last queries."""

import numpy as np
import pytest

from decoding import Spec
from models.errors import MethodError
from tests.decoding.caches import oracle

pytestmark = pytest.mark.kv

SPEC = Spec("caches/snapkv", budget=12, window=4, kernel=3)


def value_of(kernel, pool):
    """Value a token by the pooled sums of its neighbours among the kept ones."""

    def value(heads, g, t, length):
        if t >= length - 4:
            return np.inf
        sums = dict.fromkeys(heads.kept[g], 0.0)
        for query in range(max(length - 4, 0), length):
            for seen, weight in zip(*heads.column(g, query)):
                sums[seen] += weight
        kept = heads.kept[g]
        at, row = kept.index(t), [sums[x] * (x < length - 4) for x in kept]
        half = kernel // 2
        near = [
            row[i] if 0 <= i < len(row) else 0 for i in range(at - half, at + half + 1)
        ]
        return pool(near)

    return value


def test_it_keeps_what_the_window_sees():
    """Three prompts; planted: sums that are not pooled, the largest of a window."""
    assert oracle.differs(SPEC, value_of(3, np.mean), budget=12) == 0
    assert oracle.differs(SPEC, value_of(1, np.mean), budget=12) > 0
    assert oracle.differs(SPEC, value_of(3, np.max), budget=12) > 0


def test_it_may_bound_the_text_too():
    """Planted: evictions that stop with the prompt."""
    spec = Spec("caches/snapkv", **SPEC.arguments, bounded=True, every=8)
    assert oracle.differs(spec, value_of(3, np.mean), budget=12, every=8) == 0
    assert oracle.differs(spec, value_of(3, np.mean), budget=12) == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"window": 0}, "window=0"),
        ({"kernel": 4}, "an odd"),
        ({"pooling": "min"}, "pooling='min': use 'mean' or 'max'"),
    ],
)
def test_bad_numbers(arguments, words):
    with pytest.raises(MethodError, match=words):
        Spec("caches/snapkv", **arguments).build({})
