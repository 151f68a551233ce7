"""The state of a decode loop before its prompts are read."""

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from decoding import base, compose
from decoding.loops import decode, state_sharding, stats
from models.cache_layouts.shared_prefix import must_be_dense, shared
from models.distributed import sharding
from models.errors import PromptError

SHARED = 2**14  # number of saved cache slots from which sharing a prefix pays


def bucket(size: int) -> int:
    """Round `size` tokens up to one of few buffer sizes, so few programs compile."""
    step = 64
    while step * 8 < size:
        step *= 2
    return -(-size // step) * step


def initial_state(
    program: decode.Program,
    params: base.Params,
    parts: compose.Composition,
    prompts: Sequence[Sequence[int]],
    limits: Sequence[int],
    keys: Array,
    size: int,
    memory: Any,
    share: bool,
    plan: Any,
) -> tuple[decode.DecodeState, dict]:
    """Make the state of a decode loop before its prompts are read.

    Args:
        program: the compiled composition's program.
        params: all params, by name.
        parts: the composition to run; its numbers may differ from the compiled one's.
        prompts: token lists, one per row.
        limits: the lengths, prompt included, at which rows end.
        keys: key[B], the requests' keys.
        size: `T`, the token buffer's size.
        memory: the drafter's `shared` state of an earlier call, or None.
        share: store a long common beginning of the prompts once.
        plan: the sharding plan, or None.

    Returns:
        The state, and per stream its prompts: tokens int32[B, P] and lengths int32[B].
    """
    fresh = parts.program
    batch = len(prompts)
    tokens, length = _pad(prompts, size)
    dtype = _dtype(params["target"])
    room = max(program.drafter.nodes, program.drafter.scratch)
    slots = -(-(size + room) // 16) * 16
    caches = {decode.TARGET: _cache(program, prompts, slots, dtype, share, plan)}
    stream_prompts = {}
    for name, stream in program.streams.items():
        texts = fresh.streams[name].prompts
        stream_prompts[name] = (
            _pad(texts, bucket(max(map(len, texts))))
            if texts
            else (jnp.array(tokens), jnp.array(length))
        )
        width = stream_prompts[name][0].shape[1]
        kind = _dtype(base.read(params, stream.params))
        make = functools.partial(stream.model.init_cache, batch, slots + width, kind)
        caches[name] = state_sharding.made(plan, make)
    transform = jax.vmap(fresh.transform.init, out_axes=base.ROWS)(tokens, length)
    verifier = fresh.verifier.init(params)
    stop = base.State()
    if parts.stop is not None:
        stop = base.State(jnp.full((batch,), parts.stop.start), parts.stop)
    state = decode.DecodeState(
        tokens=tokens,
        origin=jnp.zeros((batch, size), jnp.int8),
        logprobs=jnp.zeros((batch, size), jnp.float32),
        length=length,
        limit=jnp.asarray(limits, jnp.int32),
        done=jnp.zeros((batch,), bool),
        key=keys,
        roots={name: jnp.zeros((batch,), jnp.int32) for name in program.streams},
        caches=caches,
        drafter=base.State(),
        verifier=base.State(_repeat(verifier.row, batch), verifier.shared),
        transform=transform,
        policy=program.policy.init(caches[decode.TARGET]),
        exit=base.State(),
        width=fresh.width.init(batch, program.drafter.depth),
        stop=stop,
        counters=stats.zeros(batch, program.drafter.depth),
    )
    ctx = decode.context(fresh, params, state)
    drafter, exits = fresh.drafter.init(ctx), fresh.exit.init(ctx)
    if memory is not None:
        drafter = _remember(drafter, memory)
    # Every buffer is donated, so none may occur twice in the state.
    state = jax.tree.map(jnp.array, replace(state, drafter=drafter, exit=exits))
    if plan is not None:
        state = sharding.put(state, state_sharding.shardings(plan, state))
        stream_prompts = sharding.put(stream_prompts, plan.rows(stream_prompts))
    return state, stream_prompts


def _pad(prompts: Sequence[Sequence[int]], size: int) -> tuple[Array, Array]:
    tokens = np.zeros((len(prompts), size), np.int32)
    for i, prompt in enumerate(prompts):
        tokens[i, : len(prompt)] = prompt
    length = np.array([len(p) for p in prompts], np.int32)
    return jnp.asarray(tokens), jnp.asarray(length)


def _dtype(params: Any) -> Any:
    return jax.tree.leaves(params)[0].dtype


def _cache(
    program: decode.Program,
    prompts: Sequence,
    slots: int,
    dtype: Any,
    share: bool,
    plan: Any,
) -> Any:
    """Make the target's cache; with `share` a long common beginning is stored once."""

    def make() -> Any:
        return program.model.init_cache(len(prompts), slots, dtype)

    like = jax.eval_shape(make)
    if share and like.shares and not must_be_dense(program.model.config):
        prefix = common_prefix(prompts, program.chunk)
        if prefix * (len(prompts) - 1) >= SHARED:
            return state_sharding.made(plan, lambda: shared(like, prefix))
    return state_sharding.made(plan, make)


def common_prefix(prompts: Sequence[Sequence[int]], chunk: int) -> int:
    """Count the cached tokens that all prompts begin with, in whole chunks.

    The count is rounded down to one of few sizes, so that few programs compile.
    """
    first, last = min(map(list, prompts)), max(map(list, prompts))
    ends = min(map(len, prompts)) - 1  # the cache lacks each prompt's last token
    alike = next((i for i, (a, b) in enumerate(zip(first, last)) if a != b), ends)
    shared_length, step = min(alike, ends), chunk
    while step * 16 < shared_length:
        step *= 2
    return shared_length // step * step


def _repeat(row: Any, batch: int) -> Any:
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (batch, *jnp.shape(x))), row)


def _remember(drafter: base.State, memory: Any) -> base.State:
    """Put `out.memory` of an earlier call into the drafter's state."""
    shapes = [jax.tree.map(jnp.shape, tree) for tree in (drafter.shared, memory)]
    if shapes[0] != shapes[1]:
        raise PromptError(
            "memory belongs to another method or model: pass out.memory of an earlier "
            "generate with the same method, or None"
        )
    return base.State(drafter.row, memory)
