"""The state of a denoise loop before its first forward, and the read of its prompts."""

from collections.abc import Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from decoding import base
from decoding.denoising import branches, filling
from decoding.denoising.canvas_policy import between
from decoding.denoising.forward import Plan, forward, slots
from decoding.denoising.schedule import BLOCK, fresh
from decoding.denoising.transition import Program, Row
from decoding.loops import denoise, initial_state, state_sharding, stats
from decoding.prompt_settings import Composition
from models.distributed import sharding

CHUNK = 128  # tokens of a row in a chunk of the prompt


def started(
    program: Program,
    params: base.Params,
    parts: Composition,
    prompts: Sequence[Sequence[int]],
    limits: Sequence[int],
    keys: Array,
    size: int,
    requests: Sequence[int] | None = None,
    longest: tuple[int, int] | None = None,
    suffixes: Sequence[Sequence[int]] | None = None,
) -> denoise.DenoiseState:
    """Make the state of a denoise loop before its first forward.

    Args:
        program: the compiled composition's program.
        params: all params, by name.
        parts: the composition to run; its numbers may differ from the compiled one's.
        prompts: token lists, one per row.
        limits: the lengths, prompt and suffix included, at which rows end.
        keys: key[B], the requests' keys.
        size: `T`, the token buffer's size.
        requests: each row's index in `parts.settings`; see `initial_state`.
        longest: tokens of the longest prompt, and the most that a row may add, of all
            requests that the state may admit; None: those of these rows.
        suffixes: given text behind the open positions of each row; None: none.

    Raises:
        ConstraintError: no text of a row's constraint fills its canvas.
    """
    batch = len(prompts)
    behind = suffixes or [()] * batch
    known, tokens = np.zeros((batch, size), bool), np.zeros((batch, size), np.int32)
    for i, (prompt, suffix, limit) in enumerate(zip(prompts, behind, limits)):
        given = [*range(len(prompt)), *range(limit - len(suffix), limit)]
        tokens[i, given], known[i, given] = [*prompt, *suffix], True
    numbers = lambda values: jnp.asarray(list(values), jnp.int32)
    start, stops = numbers(map(len, prompts)), numbers(limits)
    zero = numbers([0] * batch)
    first = jnp.minimum(start, stops)
    most = longest[1] if longest else max(e - len(p) for p, e in zip(prompts, limits))
    new, holes = min(initial_state.bucket(most), size), program.transform.holes
    # A constraint's cost grows with its canvas, so its size is a narrower bound.
    span = new if holes is None else min(1 << max(most - 1, 0).bit_length(), size)
    schedule, policy = program.schedule, program.policy
    window = min(schedule.window(new) if schedule.window else BLOCK, size)
    if policy.block:
        window = min(window, policy.block)
    about = (jnp.asarray(tokens), jnp.asarray(known), start, stops)
    canvas = fresh(*about, (first, first), window)
    settings = initial_state.rows_settings(parts, requests, batch)
    widths = denoise.widths(policy, size, window, new)
    room = slots(policy, size, widths, schedule.branches)
    plan, model = program.model.plan, program.model
    dtype = jax.tree.leaves(params["target"])[0].dtype
    make = lambda: model.init_cache(batch, room, dtype)
    caches = {denoise.TARGET: state_sharding.made(plan, make)}
    texts = {}
    for name, stream in program.streams.items():
        own = parts.program.streams[name].prompts or [*prompts]
        width = initial_state.bucket(max(map(len, own)))
        texts[name] = initial_state.padded(own, width)
        weights = base.read(params, stream.params)
        kind = jax.tree.leaves(weights)[0].dtype
        total = width + size
        total = slots(policy, total, [total], schedule.branches)
        begin = lambda stream=stream, total=total, kind=kind: stream.model.init_cache(
            batch, total, kind
        )
        caches[name] = state_sharding.made(plan, begin)
    stop = base.State(zero)
    if parts.stop is not None:
        stop = base.State(numbers(s.stop for s in settings), parts.stop)
    row = Row(
        canvas=canvas,
        logprobs=jnp.zeros((batch, size), jnp.float32),
        end=stops - numbers(map(len, behind)),
        done=~jax.vmap(lambda c: c.open.any())(canvas),
        key=keys,
        sampled=jnp.asarray([setting.sampled for setting in settings]),
        ends=initial_state.ends_of(parts, settings),
        read=start,
    )
    last = None
    if schedule.branches > 1:
        shape = (batch, window, program.vocab)
        none = lambda: jnp.zeros(shape, jnp.float32)
        streams = {name: none() for name in program.streams}
        last = branches.Last(none(), streams, jnp.zeros(batch, bool))
    begin_schedule = jax.vmap(parts.program.schedule.init, (None, 0), base.ROWS)
    state = denoise.DenoiseState(
        row=row,
        caches=caches,
        prompts=texts,
        transform=initial_state.transform_states(parts, settings, canvas.tokens, start),
        schedule=begin_schedule(params, canvas),
        stop=stop,
        counters=stats.zeros(batch, 0, nodes=True),
        last=last,
        size=new,
        span=span,
    )
    filling.check(holes, state.transform, canvas, span, program.banned)
    # Every buffer is donated, so none may occur twice in the state.
    state = jax.tree.map(jnp.array, state)
    if plan is not None:
        state = sharding.put(state, state_sharding.shardings(plan, state))
    return state


def read(
    program: Program, params: base.Params, state: denoise.DenoiseState
) -> denoise.DenoiseState:
    """Read the whole blocks of the prompts, chunk by chunk."""
    policy, size = program.policy, state.tokens.shape[1]
    block = policy.block
    width = min(max(CHUNK // block, 1) * block, size)
    canvas = state.row.canvas
    end = canvas.start // block * block

    def more(carry: tuple) -> Array:
        return (carry[0] < end).any()

    def step(carry: tuple) -> tuple:
        begin, cache = carry
        last = jnp.minimum(begin + width, end)
        inside = jax.vmap(between, (0, None, 0))(canvas, begin, last)
        one = jax.tree.map(lambda x: x[:, None], canvas)
        none = jnp.zeros((*begin.shape, end.shape[0], 1, 1), jnp.int32)
        todo = Plan(one, inside[:, None], none)
        cache, _ = forward(
            program.model, policy, params["target"], cache, todo, [width]
        )
        return begin + width, cache

    carry = (jnp.int32(0), state.caches[denoise.TARGET])
    _, cache = lax.while_loop(more, step, carry)
    return replace(state, caches={**state.caches, denoise.TARGET: cache})
