"""Ahead-of-time compilation for TPUs, with the real compiler, on any machine.

Needs libtpu (`pip install "decodax[tpu]"`). Programs are compiled for one chip of a
slice, and not run.
"""

import dataclasses
import functools
import os
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kernels import block_traffic, int4_packing
from kernels.attention_columns import pallas_tpu as over_slots
from kernels.tree_attention import pallas_tpu
from kernels.verify import pallas_tpu as over_logits
from kernels.verify import tiling as vocabularies

# One topology for each chip that the kernels are planned for.
TOPOLOGIES = {"v4": "v4:2x2x1", "v5e": "v5e:2x2", "v5p": "v5p:2x2x1", "v6e": "v6e:2x2"}
ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
}


@functools.cache
def device(chip: str) -> Any:
    """Return a device of `chip`, for compilation only; ImportError without libtpu."""
    return slice_of(TOPOLOGIES[chip])[0]


@functools.cache
def slice_of(topology: str) -> tuple[Any, ...]:
    """Return the devices of a slice like "v5e:4x4"; ValueError if it does not exist."""
    import libtpu  # noqa: F401

    # Without these variables libtpu looks for a TPU host, and this machine is none.
    for name, value in ENVIRONMENT.items():
        if os.environ.get(name, "WARNING").startswith("WARNING"):  # jax found nothing
            os.environ[name] = value
    from jax.experimental import topologies

    try:
        description = topologies.get_topology_desc(
            platform="tpu", topology_name=topology
        )
    except jax.errors.JaxRuntimeError as error:
        raise ValueError(f"{topology}: {error}") from error
    return tuple(description.devices)


def compile_for(chip: str, function: Callable, *shapes: Any, donate: tuple = ()) -> Any:
    """Compile `function` for one `chip`.

    Args:
        chip: a key of `TOPOLOGIES`.
        function: the function to compile.
        shapes: its arguments, trees of ShapeDtypeStruct.
        donate: the positions of donated arguments.
    """
    mesh = jax.sharding.Mesh(np.array([device(chip)]), ("x",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    shapes = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), shapes
    )
    return jax.jit(function, donate_argnums=donate).lower(*shapes).compile()


MODELS = {"8B": (8, 4), "70B": (8, 8)}  # Llama 3: KV heads, query heads of each


def tree_attention_shape(
    model: str, batch: int, size: int, nodes: int, **changes: Any
) -> pallas_tpu.Shape:
    """Return one layer's call at a Llama 3 shape in bfloat16.

    Args:
        model: a key of `MODELS`.
        batch: rows.
        size: slots of the cache.
        nodes: nodes of the block.
        changes: other fields of `pallas_tpu.Shape`.
    """
    groups, heads = MODELS[model]
    bf16 = jnp.dtype(jnp.bfloat16)
    shape = pallas_tpu.Shape(batch, groups, size, 128, nodes, heads, bf16, bf16)
    return dataclasses.replace(shape, scale=128**-0.5, **changes)


def plan(chip: str, shape: pallas_tpu.Shape) -> pallas_tpu.Plan:
    """Plan a call for the vector memory and the cores of `chip`."""
    cores = block_traffic.CORES.get(chip, 1)
    return pallas_tpu.plan(shape, block_traffic.budget(chip), cores)


def tree_attention(
    chip: str, shape: pallas_tpu.Shape, planned_for: str = ""
) -> tuple[pallas_tpu.Plan, Any]:
    """Plan and compile a call, with the write of the block's keys before it.

    The cache, or its pool of pages, is donated and written as in the model. A layout
    that the kernel cannot read in place then shows as a copy. `planned_for` is the chip
    of the plan, if not `chip`.
    """
    cut = plan(planned_for or chip, shape)
    batch, nodes, new = shape.batch, shape.nodes, jax.ShapeDtypeStruct
    heads = shape.groups * shape.heads
    per = int4_packing.slots(shape.cache_dtype)
    written = -(-nodes // per)
    cache = new(_held(shape), shape.cache_dtype)
    block = new((batch, shape.groups, written, shape.dim), shape.cache_dtype)
    arrays = {
        "q": new((batch, nodes, heads, shape.dim), shape.dtype),
        "lengths": new((batch,), jnp.int32),
        "ancestors": new((batch, nodes, -(-nodes // 32)), jnp.uint32),
    }
    if shape.window:
        arrays["positions"] = new((batch, nodes), jnp.int32)
        arrays["key_positions"] = new((batch, shape.size), jnp.int32)
    if shape.scaled:
        scales = new((batch, shape.groups, shape.size), jnp.float32)
        arrays["k_scale"] = arrays["v_scale"] = scales
    if shape.biased:
        arrays["bias"] = new((batch, shape.groups, shape.size), jnp.float32)

    if shape.page:
        arrays["table"] = new((batch, shape.size // shape.page), jnp.int32)

    def call(k: Any, v: Any, keys: Any, arrays: dict) -> Any:
        rows = jnp.arange(batch)[:, None]
        slots = arrays["lengths"][:, None] // per + jnp.arange(written)
        if shape.page:
            rows, slots = arrays["table"][rows, slots // shape.page], slots % shape.page
        at = (rows[:, None], jnp.arange(shape.groups)[None, :, None], slots[:, None])
        k, v = (x.at[at].set(keys, mode="drop", unique_indices=True) for x in (k, v))
        limit = block_traffic.budget(chip)
        out = pallas_tpu.tree_attention(cut, k=k, v=v, **arrays, vmem=limit)
        return k, v, out

    return cut, compile_for(chip, call, cache, cache, block, arrays, donate=(0, 1))


def _held(shape: pallas_tpu.Shape) -> tuple[int, int, int, int]:
    """Return the shape of the cache's array, of keys or of values."""
    size = (shape.page or shape.size) // int4_packing.slots(shape.cache_dtype)
    return shape.pages or shape.batch, shape.groups, size, shape.dim


def copies_of_the_cache(text: str, shape: pallas_tpu.Shape) -> list[str]:
    """List a compiled program's instructions that copy or transpose a whole cache."""
    return copies_of(text, _held(shape))


def copies_of(text: str, held: tuple[int, int, int, int]) -> list[str]:
    """List instructions that copy or transpose an array like `held` [B, G, S, d]."""
    b, g, size, d = held
    forms = ((b, g, size, d), (b * g, size, d), (b * g * size, d))
    caches = {tuple(sorted(n for n in form if n > 1)) for form in forms}
    pattern = re.compile(r"= \(?\w+\[([\d,]+)\]\S* (copy|copy-start|transpose|pad)\(")
    copies = []
    for line in text.splitlines():
        match = pattern.search(line)
        if match:
            sides = (int(n) for n in match[1].split(","))
            if tuple(sorted(n for n in sides if n > 1)) in caches:
                copies.append(line.strip())
    return copies


def attention_columns_shape(
    model: str, batch: int, size: int, queries: int, **changes: Any
) -> over_slots.Shape:
    """Return one layer's column sums at a Llama 3 shape in bfloat16.

    Args:
        model: a key of `MODELS`.
        batch: rows.
        size: slots of the cache.
        queries: stored queries of a row.
        changes: other fields of the shape.
    """
    groups, heads = MODELS[model]
    bf16 = jnp.dtype(jnp.bfloat16)
    shape = over_slots.Shape(batch, groups, size, 128, queries, heads, bf16, bf16)
    return dataclasses.replace(shape, **changes)


def attention_columns(
    chip: str, shape: over_slots.Shape
) -> tuple[over_slots.Plan, Any]:
    """Plan and compile a call of column sums."""
    limit, new = block_traffic.budget(chip), jax.ShapeDtypeStruct
    cut = over_slots.plan(shape, limit)
    asked = (shape.batch, shape.queries)
    heads = shape.groups * shape.heads
    slots = shape.held[:3]
    arrays = {
        "q": new((*asked, heads, shape.dim), shape.dtype),
        "k": new(shape.held, shape.key_dtype),
        "weight": new(asked, jnp.float32),
        "query_positions": new(asked, jnp.int32),
        "key_positions": new(slots, jnp.int32),
    }
    if shape.known:
        arrays["lse"] = new((*asked, heads), jnp.float32)
    if shape.biased:
        arrays["bias"] = new(slots, jnp.float32)
    if shape.sunk:
        arrays["sinks"] = new((shape.batch, heads), jnp.float32)

    def call(arrays: dict) -> Any:
        return over_slots.columns(cut, **arrays, vmem=limit)

    return cut, compile_for(chip, call, arrays)


def over_vocabulary(
    chip: str, operation: str, shape: vocabularies.Shape
) -> tuple[vocabularies.Plan, Any]:
    """Plan and compile `operation`: `verify`, `residual` or `thresholds`."""
    limit, new = block_traffic.budget(chip), jax.ShapeDtypeStruct
    nodes = (shape.batch, shape.nodes)
    wide = new((*nodes, shape.vocab), shape.dtype)
    number, token = new(nodes, jnp.float32), new(nodes, jnp.int32)
    noise = new(wide.shape, jnp.float32)
    cut: vocabularies.Plan
    if operation == "thresholds":
        cut = vocabularies.plan_search(shape, limit)
        arrays = [wide, token, number]
    elif operation == "residual":
        cut = vocabularies.plan_rest(shape, limit)
        arrays = [wide, wide, number, number, noise]
    else:
        cut = vocabularies.plan(shape, limit)
        rows = new((shape.batch, shape.noises, shape.vocab), jnp.float32)
        ids = new((*nodes, shape.tokens), jnp.int32)
        arrays = [wide, number, ids, *((rows, token) if shape.shared else (noise,))]
    function = getattr(over_logits, operation)
    if operation == "verify" and not shape.shared:
        function = functools.partial(function, depth=None)

    def call(*arrays: Any) -> Any:
        return function(cut, *arrays, vmem=limit)

    return cut, compile_for(chip, call, *arrays)
