"""What a kernel moves, counted from the index maps that it is given."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl

from kernels import block_traffic
from kernels.tree_attention import pallas_tpu

pytestmark = pytest.mark.kernels

MODELS = {"8B": (8, 4), "70B": (8, 8)}  # KV heads, and query heads of each


def shape_of(model, batch, size, nodes, **changes):
    groups, heads = MODELS[model]
    bf16 = jnp.dtype(jnp.bfloat16)
    shape = pallas_tpu.Shape(batch, groups, size, 128, nodes, heads, bf16, bf16)
    return dataclasses.replace(shape, **changes)


def abstract(shape):
    """The arrays of a call."""
    new = jax.ShapeDtypeStruct
    heads = shape.groups * shape.heads
    cache = new((shape.batch, shape.groups, shape.size, shape.dim), shape.cache_dtype)
    return (
        new((shape.batch, shape.nodes, heads, shape.dim), shape.dtype),
        cache,
        cache,
        new((shape.batch,), jnp.int32),
        new((shape.batch, shape.nodes, -(-shape.nodes // 32)), jnp.uint32),
    )


def captured(cut, monkeypatch):
    """The arguments with which `pallas_call` is called, and the shapes it gets."""
    seen = {}
    real = pl.pallas_call

    def spy(kernel, **given):
        call = real(kernel, **given)

        def run(*arrays):
            seen.update(given, arrays=arrays)
            return call(*arrays)

        return run

    monkeypatch.setattr(pl, "pallas_call", spy)
    jax.eval_shape(
        lambda *a: pallas_tpu.tree_attention(cut, *a, interpret=True),
        *abstract(cut.shape),
    )
    return seen


def moved(seen, cut, bounds):
    """Bytes of a call, step by step: a block moves when its index changes."""
    grid = seen["grid_spec"]
    scalars = [np.asarray(x) for x in cut.scalars(bounds)]
    arrays = [*seen["arrays"][len(scalars) :], *seen["out_shape"]]
    total = 0
    for spec, array in zip([*grid.in_specs, *grid.out_specs], arrays, strict=True):
        before = None
        for step in itertools.product(*map(range, cut.grid(scalars[-1]))):
            at = tuple(int(i) for i in spec.index_map(*map(np.int32, step), *scalars))
            if at != before:
                sides = zip(at, spec.block_shape, array.shape)
                inside = [min(side, size - i * side) for i, side, size in sides]
                total += int(np.prod(inside)) * array.dtype.itemsize
            before = at
    return total


@pytest.mark.parametrize(
    ("nodes", "changes"),
    [
        (1, {}),
        (64, {"window": 100}),
        (300, {"scaled": True, "cache_dtype": jnp.dtype(jnp.int8)}),
    ],
)
def test_declared_cost_is_what_the_index_maps_fetch(nodes, changes, monkeypatch):
    shape = shape_of("8B", 2, 1000, nodes)
    cut = pallas_tpu.plan(shape, block_traffic.budget("v5e"))
    if not changes:
        seen = captured(cut, monkeypatch)
        full = cut.bounds_at([1000, 1000])
        assert seen["cost_estimate"].bytes_accessed == moved(seen, cut, full)
    cut = pallas_tpu.plan(dataclasses.replace(shape, **changes), 2**24, cores=2)
    for lengths in ([1000, 1000], [0, 512], [77, 640]):
        bounds = cut.bounds_at(lengths)
        operands = cut.inputs() + cut.outputs()
        assert sum(cut.traffic(bounds).values()) == by_hand(cut, operands, bounds)


def by_hand(cut, operands, bounds):
    total, scalars = 0, [np.asarray(x) for x in cut.scalars(bounds)]
    for o in operands:
        before = None
        for step in itertools.product(*map(range, cut.grid(scalars[-1]))):
            at = tuple(int(i) for i in o.index(*map(np.int32, step), *scalars))
            if at != before:
                sides = zip(at, o.block, o.shape)
                inside = [min(side, size - i * side) for i, side, size in sides]
                total += int(np.prod(inside)) * np.dtype(o.dtype).itemsize
            before = at
    return total


def needed(shape, lengths):
    """Bytes of the used part of the cache, q and the output."""
    used = np.minimum(np.asarray(lengths) + shape.nodes, shape.size).sum()
    slot = 2 * shape.groups * shape.dim * np.dtype(shape.cache_dtype).itemsize
    none = dataclasses.replace(shape, size=0)
    return used * slot + none.least_bytes


GRID = [
    (chip, model, size, nodes, batch)
    for chip in block_traffic.VMEM
    for model in MODELS
    for size in (8192, 32768)
    for nodes in (1, 64, 256, 1024)
    for batch in (1, 8, 32)
]


@pytest.mark.parametrize("chip", block_traffic.VMEM)
def test_a_call_moves_little_more_than_it_needs(chip):
    """Full caches, and ragged ones from an eighth of the cache on: at most 1.1 times.

    Planted: an index map that runs on past a row's end.
    """
    worst = 0.0
    for _, model, size, nodes, batch in (g for g in GRID if g[0] == chip):
        shape = shape_of(model, batch, size, nodes)
        cores = block_traffic.CORES.get(chip, 1)
        cut = pallas_tpu.plan(shape, block_traffic.budget(chip), cores)
        assert cut.vmem <= block_traffic.budget(chip) and cut.passes == 1
        rng = np.random.default_rng(batch)
        ragged = rng.integers(size // 8, size - nodes, batch)
        for lengths in (np.full(batch, size - nodes), ragged):
            total = sum(cut.traffic(cut.bounds_at(lengths)).values())
            worst = max(worst, total / needed(shape, lengths))
    assert worst <= 1.1
    running_on = cut.bounds_at(np.full(batch, size))
    assert sum(cut.traffic(running_on).values()) / needed(shape, ragged) > 1.1


def test_a_window_is_all_that_is_read():
    shape = shape_of("8B", 4, 8192, 64, window=1024)
    cut = pallas_tpu.plan(shape, block_traffic.budget("v5e"))
    lengths = np.full(4, 8000)
    bounds = np.stack([lengths, lengths - 1024, lengths + 64]).astype(np.int32)
    counted = cut.traffic(bounds)
    slots = counted["k"] / (4 * 8 * 128 * 2)
    assert 1088 <= slots <= 1088 + 2 * cut.block


def test_every_core_has_its_rows_blocks_and_no_others():
    """Rows of 0 to 8 blocks on two cores, by hand; a row alone is cut by its heads."""
    shape = shape_of("8B", 5, 8192, 1)
    cut = pallas_tpu.plan(shape, block_traffic.budget("v5p"), 2)
    cut = dataclasses.replace(cut, block=1024)
    bounds = cut.bounds_at([0, 8192, 1023, 1024, 2047], nodes=1)
    bounds[2, 0] = 0  # nobody sees anything: one step all the same
    bounds[1, 1] = 4096  # a window
    _, rows, blocks, counts = map(np.asarray, cut.scalars(bounds))
    lists = np.stack([rows, blocks], 1).reshape(2, -1, 2)
    assert counts.tolist() == [4, 6] and cut.grid(counts) == (2, 1, 1, 6)
    assert lists[0, :6].tolist() == [[0, 0], [2, 0], [4, 0], [4, 1], [4, 1], [4, 1]]
    assert lists[1, :6].tolist() == [[1, 4], [1, 5], [1, 6], [1, 7], [3, 0], [3, 1]]
    one_more = bounds + np.array([[0], [0], [1], [0]], np.int32)  # planted: an end
    assert np.asarray(cut.scalars(one_more)[3]).tolist() != [4, 6]
    together = dataclasses.replace(cut, cores=1).scalars(bounds)
    assert np.asarray(together[3]).tolist() == [10]
    alone = pallas_tpu.plan(shape_of("8B", 1, 8192, 1), 2**24, 2)
    assert alone.cores == 1 and alone.groups == 4
    odd = dataclasses.replace(shape_of("8B", 1, 8192, 1), groups=5)
    assert pallas_tpu.plan(odd, 2**24, 2).groups == 1  # 2 of 5 would leave one out
