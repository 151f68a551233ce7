"""Every param has its place on a mesh, by name; bytes a device, from shapes alone."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding
import models
from models import io, transformer
from models.cache_layouts import kv_cache, paged, quantized
from models.distributed import axis_rules, device_mesh, sharding
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


def plan_of(data: int, tensor: int) -> sharding.Plan:
    mesh: Any = jax.sharding.AbstractMesh((data, 1, tensor), device_mesh.MESH_AXES)
    return sharding.Plan(mesh, tuple(sorted(axis_rules.RULES["decode"].items())))


@pytest.mark.parametrize(
    "groups, tensor, q, weight",
    [
        (8, 8, [1, 8, 128], [1, 10, 128]),
        (8, 16, [1, 4, 128], [1, 10, 64]),
        (8, 4, [2, 8, 128], [2, 10, 128]),
        (2, 8, [1, 8, 128], [1, 34, 32]),
        (1, 8, [1, 8, 128], [1, 66, 16]),
        (6, 4, [3, 4, 128], [3, 10, 64]),
        (3, 6, [1, 8, 128], [1, 18, 64]),
        (8, 1, [8, 8, 128], [8, 10, 128]),
    ],
)
def test_query_heads_take_what_kv_heads_leave(groups, tensor, q, weight):
    """Of 64 query heads, or 48: the shapes on a device."""
    plan, repeats = plan_of(1, tensor), (64 if groups & groups - 1 == 0 else 48)
    repeats //= groups
    cut = lambda shape, axes: list(plan.of(shape, axes).shard_shape(shape))
    assert cut((groups, repeats, 128), "kv_heads heads -") == q
    qkv = axis_rules.param_axes("qkv", 4)
    assert cut((64, groups, repeats + 2, 128), qkv)[1:] == weight


def bytes_of(data: int, tensor: int, layout) -> int:
    """Of two layers of a 70B and its cache of 16 rows of 8192 slots, on one device."""
    config = transformer.Config(
        *(1024, 8192, 2, 64, 8, 128, 28672, 8192),
        ropes=(transformer.rope(128, 5e5),),
    )
    plan, lm = plan_of(data, tensor), transformer.transformer(config, cache=layout)
    with sharding.use(plan):
        cache = jax.eval_shape(lambda: lm.init_cache(16, 8192, jnp.bfloat16))
    params = jax.eval_shape(lm.init, jax.random.key(0))
    trees = (cache, plan.tree(cache, cache.axes())), (params, plan.params(params))
    pairs = (zip(jax.tree.leaves(a), jax.tree.leaves(b)) for a, b in trees)
    return sum(
        math.prod(where.shard_shape(x.shape)) * x.dtype.itemsize
        for tree in pairs
        for x, where in tree
    )


LAYOUTS = {"dense": kv_cache.dense, "paged": paged.pages(), "int8": quantized.int8()}


@pytest.mark.parametrize("name", LAYOUTS)
def test_sixteen_devices_hold_less_than_eight(name, monkeypatch):
    """Of a model of eight KV heads; planted: the tensor axis in one piece."""
    more, few = (bytes_of(1, tensor, LAYOUTS[name]) for tensor in (16, 8))
    assert more < few
    monkeypatch.setattr(device_mesh, "factored", lambda mesh: mesh)
    assert bytes_of(1, 8, LAYOUTS[name]) == few < bytes_of(1, 16, LAYOUTS[name])


def test_a_pool_is_cut_as_its_rows_are(monkeypatch):
    """Within the table's bytes of the dense cache; planted: one pool for all rows."""
    dense, pools = (bytes_of(4, 8, LAYOUTS[name]) for name in ("dense", "paged"))
    assert dense < pools < 1.01 * dense
    monkeypatch.setattr(sharding, "pieces", lambda size, axis: 1)
    assert bytes_of(4, 8, LAYOUTS["paged"]) > 1.1 * dense


def test_a_weight_lies_as_products_read_it(monkeypatch):
    """Its text is that of the order of its shape, whose program is another. Planted:
    programs are told apart by what devices hold, and not in which order."""
    monkeypatch.setattr(sharding, "ORDERED", ("cpu",))
    toy, plan = agreement.target(), sharding.on("data=1")
    assert plan is not None
    lm = models.Loaded(toy.model, toy.params)
    turned = io.placed(lm, plan)
    bare = dataclasses.replace(
        turned, params=sharding.put(lm.params, plan.params(lm.params))
    )
    weights = [
        *(x.params["layer_0"]["mlp"]["up"] for x in (turned, bare, toy)),
        *(  # what was trained or changed on its devices
            sharding.placed(*pair)["layer_0"]["mlp"]["up"]
            for pair in ((plan, bare.params), (None, toy.params))
        ),
        io.placer(None)("mlp/up", np.ones((2, 2, 3))),
    ]
    orders = [x.format.layout.major_to_minor for x in weights]
    turned_to, own = (1, 0, 2), (0, 1, 2)
    assert orders == [turned_to, own, own, turned_to, turned_to, turned_to]

    def text(lm):
        return decoding.generate(lm, [[1, 2, 3]], max_new_tokens=8).tokens

    assert text(turned) == text(bare) == text(lm)
    single = dataclasses.replace(lm, params=sharding.placed(None, lm.params))
    assert text(single) == text(lm)
    monkeypatch.setattr(axis_rules, "ORDER", {})  # what is there stays as it lies
    assert text(turned) == text(bare)
    monkeypatch.setattr(sharding, "ordered", lambda plan: False)
    assert text(bare)
    with pytest.raises(ValueError, match="layouts"):
        text(turned)
