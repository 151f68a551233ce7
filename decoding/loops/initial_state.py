"""The state of a decode loop before its prompts are read."""

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from decoding import base
from decoding.loops import decode, prefill, state_sharding, stats, streams
from decoding.prompt_settings import Composition, Setting
from models.cache_layouts.held import windowed, windows_of
from models.cache_layouts.shared_prefix import must_be_dense, shared
from models.distributed import sharding
from models.errors import MethodError, PromptError

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
    parts: Composition,
    prompts: Sequence[Sequence[int]],
    limits: Sequence[int],
    keys: Array,
    size: int,
    memory: Any,
    share: bool,
    plan: Any,
    requests: Sequence[int] | None = None,
    scratch: int = 0,
    longest: tuple[int, int] | None = None,
    contexts: Sequence[int] | None = None,
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
        requests: each row's index in `parts.settings`. None: the rows are in their
            order, as many for each.
        scratch: of a search: slots behind each prompt and text.
        longest: tokens of the longest prompt, and the most that a row may add, of all
            requests that the state may admit; None: those of these rows.
        contexts: how many of each row's first tokens the policy compresses; None: all.

    Returns:
        The state, and per stream its prompts: tokens int32[B, P] and lengths int32[B].
    """
    fresh = parts.program
    batch = len(prompts)
    tokens, length = padded(prompts, size)
    dtype = _dtype(params["target"])
    room = max(program.drafter.nodes, program.drafter.scratch)
    slots = -(-(size + room) // 16) * 16
    if scratch:
        # What a search settles takes the places of the text, before the scratch slots.
        room, slots = scratch, size + scratch
    # What the policy compresses ends behind the context, as if the prompt did.
    read = [len(prompt) for prompt in prompts]
    if contexts is not None:
        read = [min(size + 1, whole) for size, whole in zip(contexts, read)]
    longest = longest or (max(read), max(end - n for end, n in zip(limits, read)))
    sizes = base.Sizes(batch, slots, *longest, room, dtype)
    ends = jnp.asarray(read, jnp.int32)
    caches = {decode.TARGET: _cache(program, prompts, sizes, ends, share, plan)}
    stream_prompts = {}
    for name, stream in streams.models(fresh.streams).items():
        texts = stream.prompts
        stream_prompts[name] = (
            padded(texts, bucket(max(map(len, texts))))
            if texts
            else (jnp.array(tokens), jnp.array(length))
        )
        width = stream_prompts[name][0].shape[1]
        kind = _dtype(base.read(params, stream.params))
        make = functools.partial(stream.model.init_cache, batch, slots + width, kind)
        caches[name] = state_sharding.made(plan, make)
    settings = rows_settings(parts, requests, batch)
    transform = transform_states(parts, settings, tokens, length)
    verifier = fresh.verifier.init(params)
    stop = base.State()
    if parts.stop is not None:
        starts = [setting.stop for setting in settings]
        stop = base.State(jnp.asarray(starts, jnp.int32), parts.stop)
    state = decode.DecodeState(
        tokens=tokens,
        origin=jnp.zeros((batch, size), jnp.int8),
        logprobs=jnp.zeros((batch, size), jnp.float32),
        length=length,
        limit=jnp.asarray(limits, jnp.int32),
        done=jnp.zeros((batch,), bool),
        key=keys,
        sampled=jnp.asarray([setting.sampled for setting in settings]),
        ends=ends_of(parts, settings),
        roots={name: jnp.zeros((batch,), jnp.int32) for name in stream_prompts},
        caches=caches,
        drafter=base.State(),
        verifier=base.State(_repeat(verifier.row, batch), verifier.shared),
        transform=transform,
        policy=program.policy.init(caches[decode.TARGET]),
        exit=base.State(),
        width=fresh.width.init(batch, program.drafter.depth),
        stop=stop,
        counters=stats.zeros(
            batch,
            program.drafter.depth,
            program.policy.reads is not None,
            program.exit.layers is not None,
        ),
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


def own_prompts(parts: Composition) -> list[Sequence[int]]:
    """List the prompts that streams have of their own."""
    models = streams.models(parts.program.streams).values()
    return [text for stream in models for text in stream.prompts or ()]


def rows_settings(
    parts: Composition, requests: Sequence[int] | None, batch: int
) -> list[Setting]:
    """Return the settings of every row."""
    settings = parts.settings
    if requests is None:
        if batch % len(settings):
            raise PromptError(
                f"{batch} rows for the settings of {len(settings)} prompts: start as "
                "many rows for each prompt"
            )
        return [settings[i * len(settings) // batch] for i in range(batch)]
    last = len(settings) - 1
    return [settings[min(i, last)] for i in requests]


def transform_states(
    parts: Composition,
    settings: Sequence[Setting],
    tokens: Array,
    length: Array,
) -> base.State:
    """Return the transforms' states after the prompts, with each row's own numbers."""
    if len({setting.transform for setting in parts.settings}) == 1:
        init = parts.program.transform.init
        return jax.vmap(init, out_axes=base.ROWS)(tokens, length)
    states = [s.transform.init(*row) for s, *row in zip(settings, tokens, length)]
    shapes = [jax.tree.map(jnp.shape, (state.row, state.shared)) for state in states]
    shared = [jax.tree.leaves(state.shared) for state in states]
    for i in range(1, len(states)):
        if shapes[i] != shapes[0]:
            raise MethodError(
                "transforms with other numbers a prompt have states of other shapes: "
                f"{shapes[0]} in row 0, {shapes[i]} in row {i}: decode these prompts "
                "in calls of their own"
            )
        # One program: what a transform keeps for all rows cannot differ by row.
        if not all(map(np.array_equal, shared[0], shared[i])):
            raise MethodError(
                f"a transform of row {i} has other tables than that of row 0, and "
                "keeps them for all rows (`State.shared`): decode these prompts in "
                "calls of their own"
            )
    row = jax.tree.map(lambda *leaves: jnp.stack(leaves), *[s.row for s in states])
    return base.State(row, states[0].shared)


def ends_of(parts: Composition, settings: Sequence[Setting]) -> Array:
    """Return the rows' EOS and stop tokens int32[B, E], padded with -1.

    Of all prompts, not of these rows alone, so that rows can be admitted later.
    """
    most = max(len(setting.ends) for setting in parts.settings)
    width = max(4, 1 << (most - 1).bit_length())  # few sizes, so that few programs
    ends = [[*s.ends, *[-1] * (width - len(s.ends))] for s in settings]
    return jnp.asarray(ends, jnp.int32)


def padded(prompts: Sequence[Sequence[int]], size: int) -> tuple[Array, Array]:
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
    sizes: base.Sizes,
    length: Array,
    share: bool,
    plan: Any,
) -> Any:
    """Make the target's cache; with `share` a long common beginning is stored once.

    Args:
        program: the compiled composition's program.
        prompts: token lists, one per row.
        sizes: what the cache has to hold.
        length: int32[B], of the prompts.
        share: as of `initial_state`.
        plan: the sharding plan, or None.
    """
    policy, model = program.policy, program.model
    if policy.make is not None:
        own = functools.partial(policy.make, model, sizes, length)
        return state_sharding.made(plan, own)
    config = program.model.config

    def make() -> Any:
        return model.init_cache(len(prompts), sizes.slots, sizes.dtype)

    like = jax.eval_shape(make)
    if like.shares and must_be_dense(config):
        windows = windows_of(config)
        return state_sharding.made(plan, lambda: windowed(make, windows, sizes.block))
    if share and like.shares:
        prefix = common_prefix(prompts, program.chunk or prefill.CHUNK)
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
