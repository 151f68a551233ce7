"""Every param of every draft head has its place on a mesh, by name."""

import jax
import jax.numpy as jnp
import pytest

from models.distributed import axis_rules
from tests.decoding.drafters import agreement
from training.runs import draft_head_run


def unplaced(params) -> set[str]:
    """The names of params that no line of the table places."""
    paths = jax.tree_util.tree_leaves_with_path(params)
    names = {(axis_rules.param_name(path), x.ndim) for path, x in paths}
    return {
        name
        for name, dims in names
        if name not in axis_rules.WHOLE and not axis_rules.param_axes(name, dims)
    }


@pytest.mark.parametrize("name", draft_head_run.names())
def test_every_param_of_a_head_is_in_the_table(name):
    lm, kind = agreement.target(4), draft_head_run.module(name)
    make = lambda key: kind.init(key, lm.model, lm.params, **kind.EXAMPLE["init"])
    params = jax.eval_shape(make, jax.random.key(0))
    assert unplaced(params) == set(), "add it to axis_rules.PARAMS or axis_rules.WHOLE"


def test_fault_a_name_that_nobody_placed():
    """Planted: a new weight, and a known one with other dimensions."""
    params = {"wheel": jnp.zeros((2, 2)), "out": jnp.zeros(3), "norm": jnp.zeros(2)}
    assert unplaced(params) == {"wheel", "out"}
