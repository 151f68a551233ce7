"""The model whose call costs nothing answers states of any rank."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.synthetic import constant, toy


@pytest.mark.parametrize("places", [(3,), (2, 3), (200,)])
def test_a_row_for_every_place(places):
    """Planted: rows of the first axis alone, as if a table had one token above."""
    like = toy.model(6, eos=(5,))[0]
    model, params = constant.language_model(like), constant.params(like)
    x = jnp.zeros((2, *places, 1))
    found = np.asarray(jax.jit(model.head)(params, x))
    assert found.shape == (2, *places, 6)
    rows = np.asarray(params["table"])
    flat = found[0].reshape(-1, 6)
    wanted = rows[np.arange(len(flat)) % constant.ROWS]
    np.testing.assert_array_equal(flat, wanted)
    np.testing.assert_array_equal(found[0], found[1])
    assert (flat[0] != flat[1]).any()
