"""Capped scores and sinks bear on what a policy keeps: its shares are attention's."""

import numpy as np
import pytest

from decoding.conformance import peaked
from tests.decoding.caches import oracle, test_h2o, test_snapkv, test_tova

pytestmark = pytest.mark.kv

OLD = test_tova.ARGUMENTS


@pytest.mark.parametrize(
    ("spec", "value", "rule"),
    [
        (test_h2o.SPEC, test_h2o.value, test_h2o.RULE),
        pytest.param(
            test_tova.SPEC, test_tova.of_all_heads, OLD, marks=pytest.mark.long
        ),
        pytest.param(
            test_snapkv.SPEC,
            test_snapkv.value_of(3, np.mean),
            {"budget": 12},
            marks=pytest.mark.long,
        ),
    ],
    ids=["h2o", "tova", "snapkv"],
)
def test_shares_are_those_of_attention(spec, value, rule):
    """Three prompts; planted: scores without their bound, sums without the sinks."""
    lm = peaked.bounded()
    assert oracle.differs(spec, value, lm, **rule) == 0
    assert oracle.differs(spec, value, lm, **rule, capped=False) > 0
    assert oracle.differs(spec, value, lm, **rule, sunk=False) > 0
