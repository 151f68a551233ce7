"""decoding/drafters/lane_model.py: which drafts it chooses, and its contract."""

import jax.numpy as jnp
import numpy as np
import pytest

from decoding import Spec
from decoding.conformance import faults, kit, lanes
from models.errors import MethodError

MODEL = Spec("drafters/lane_model", m=3, depth=2)


def test_drafts_are_the_best_of_all_lanes():
    """By hand; planted: with other chances of the lanes they are others."""
    part = Spec("drafters/lane_model", m=2).build({"draft": kit.DRAFT.model})
    law = np.full((2, kit.VOCAB), -20.0, np.float32)
    law[0, [1, 4, 6]] = np.log([0.5, 0.3, 0.2])
    law[1, [2, 3]] = np.log([0.9, 0.1])
    sums = np.log([0.6, 0.4]).astype(np.float32)
    # 0.6 (0.5, 0.3, 0.2) and 0.4 (0.9, 0.1): 0.36, 0.30, 0.18, 0.12
    assert part.count(2) == 4
    parent, token, values = part.expand(jnp.asarray(sums), jnp.asarray(law), 4)
    assert parent.tolist() == [1, 0, 0, 0] and token.tolist() == [2, 1, 4, 6]
    np.testing.assert_allclose(np.exp(values), [0.36, 0.3, 0.18, 0.12], rtol=1e-5)
    other = part.expand(jnp.log(jnp.asarray([0.1, 0.9])), jnp.asarray(law), 4)
    assert other[1].tolist() == [2, 3, 1, 4]


def test_a_lane_that_is_not_there_has_no_drafts():
    part = Spec("drafters/lane_model", m=2).build({"draft": kit.DRAFT.model})
    law = jnp.zeros((2, kit.VOCAB))
    parent, _, values = part.expand(jnp.asarray([-jnp.inf, 0.0]), law, 12)
    assert set(parent[:8].tolist()) == {1}
    assert np.isinf(values[8:]).all()


def test_the_contract_and_its_fault():
    lanes.check(MODEL)
    with faults.planted(MODEL, faults.drafts_the_worst):
        with pytest.raises(AssertionError, match="own drafts"):
            lanes.own_drafts_save_rounds(MODEL)


@pytest.mark.parametrize(
    ("arguments", "words"), [({"m": 0}, "m=0"), ({"depth": 1.5}, "depth=1.5")]
)
def test_refused(arguments, words):
    with pytest.raises(MethodError, match=words):
        Spec("drafters/lane_model", **arguments).build({"draft": kit.DRAFT.model})
