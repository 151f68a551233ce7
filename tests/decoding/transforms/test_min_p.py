"""decoding/transforms/min_p.py."""

import jax.numpy as jnp
import numpy as np
import pytest

from decoding.transforms import min_p
from models.errors import MethodError


@pytest.mark.parametrize("p", [0.0, 0.02, 0.3, 1.0])
def test_equals_hf(parity, p):
    parity(f"min_p/{p}", min_p.transform(p))


def test_fault_a_fraction_of_the_whole(parity):
    good = min_p.transform(0.3)

    def absolute(state, logits, aux):
        p = jnp.exp(logits) / jnp.exp(logits).sum()
        return jnp.where(p >= state.row.p, logits, -jnp.inf)

    with pytest.raises(AssertionError):
        parity("min_p/0.3", good._replace(apply=absolute))


def test_by_hand():
    made = min_p.transform(0.4)
    state = made.init(jnp.zeros(1, jnp.int32), jnp.int32(1))
    out = made.apply(state, jnp.log(jnp.array([0.1, 0.5, 0.25, 0.15])), {})
    np.testing.assert_array_equal(np.isfinite(out), [0, 1, 1, 0])


@pytest.mark.parametrize("p", [-0.1, 1.01, float("nan")])
def test_refuses(p):
    with pytest.raises(MethodError, match="fraction"):
        min_p.transform(p)
