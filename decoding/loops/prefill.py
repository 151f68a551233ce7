"""Prefill: the prompt goes through the model in causal chunks.

A chunk is a round with nothing to verify: a chain whose nodes are all accepted. Every
chunk reads all weights, so few large ones are best where memory bandwidth is scarce.
Texts do not depend on the size but by rounding.
"""

import math
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from decoding import base, tree
from decoding.loops import chosen_layers, state_sharding, streams
from decoding.loops.decode import TARGET, DecodeState, Program, context
from models.base import ALL, NONE, Block, causal_block
from models.cache_layouts import held
from models.cache_layouts.kv_cache import by_rows
from models.distributed import sharding

CHUNK = 128  # tokens: a chunk has no fewer, unless `Program.chunk` is set
MOST = 1024  # tokens of a row in a chunk: those that attention kernels take
TOKENS = 4096  # of all rows of a device in a chunk
LOGITS = 2**28  # bytes of a chunk's logits on a device, where a drafter reads them


def chunk_size(program: Program, state: DecodeState, longest: int) -> int:
    """Choose the tokens of a row in a chunk: a power of two from `CHUNK` to `MOST`.

    `Program.chunk` is used where it is set. Else a chunk has at most `TOKENS` tokens of
    all rows of a device, of a row no more than the longest prompt has, rounded up, and
    divides what layouts demand. It depends on shapes alone: all processes agree, and a
    batch has at most four prefill programs.

    On CPUs it is `CHUNK`: on two cores shared with other work, 2,048 tokens took `tiny`
    3.5 s in chunks of 128, 5.6 s of 512 and 5.8 s of 1,024 (the best of three); 1,024
    tokens took a model of 100M parameters 9.1, 11.1 and 11.5 s (once).

    Args:
        program: the composition.
        state: before its prompts are read; arrays or shapes.
        longest: tokens of the longest prompt.
    """
    if program.chunk:
        return program.chunk
    rows, plan = state.length.shape[0], program.model.plan
    parts = plan.parts if plan is not None else lambda size, axis: 1
    rows = rows // parts(rows, "batch")
    tokens = CHUNK if sharding.platform(plan) == "cpu" else TOKENS
    if program.drafter.prompt_logits:
        row = 4 * program.vocab // parts(program.vocab, "vocab")
        tokens = min(tokens, LOGITS // row)
    size = CHUNK
    while size < min(longest - 1, MOST) and 2 * size * rows <= tokens:
        size *= 2
    spans = by_rows(lambda cache: [x.span for x in cache.layers], lambda x: (), state)
    return math.gcd(size, *jax.tree.leaves(spans))


def prefill(
    program: Program,
    params: base.Params,
    state: DecodeState,
    prompts: dict,
    numbers: Any = (),
    *,
    size: int,
) -> DecodeState:
    """Fill the caches with every prompt's tokens but the last, chunk by chunk.

    Args:
        program: the composition.
        params: all params, by name.
        state: before the prompts are read.
        prompts: stream -> its prompts, `(tokens int32[B, P], length int32[B])`.
        numbers: those of `program.prefill`.
        size: tokens of a row in a chunk.
    """
    before = state
    state = held.widened(state, size)
    caches, roots = dict(state.caches), dict(state.roots)
    for name, stream in streams.models(program.streams).items():
        tokens, length = prompts[name]
        model = (stream.model, base.read(params, stream.params))
        caches[name] = fill_stream(model, caches[name], tokens, length, size)
        roots[name] = jnp.take_along_axis(tokens, (length - 1)[:, None], 1)[:, 0]
    state = replace(state, caches=caches, roots=roots)
    logits_at = ALL if program.drafter.prompt_logits else NONE

    own = base.State()
    if program.prefill is not None:
        own = program.prefill.init(numbers, state.caches[TARGET])

    def body(both: tuple[DecodeState, base.State]) -> tuple:
        carry, own = both
        cache = carry.caches[TARGET]
        block, nodes, count = chunk(carry.tokens, carry.length, cache, size)
        if program.policy.room is not None:
            coming = chunk(carry.tokens[:, 1:], carry.length, cache, size)[0]
            room = program.policy.room(carry.policy, cache, coming.tokens)
            count = jnp.minimum(count, room)
            nodes = tree.chain(block.tokens[:, 0], block.tokens[:, 1:], count - 1)
        slots, visibility = program.policy.place(carry.policy, cache, nodes)
        # Tokens past a row's chunk are written nowhere: no page has a slot for them.
        index = jnp.arange(size, dtype=jnp.int32)
        slots = jnp.where(index < count[:, None], slots, cache.size + index)
        block = replace(block, slots=slots, visibility=visibility, logits_at=logits_at)
        if program.prefill is not None:
            ahead = cache.length[:, None] + 1 + index
            labels = jnp.take_along_axis(carry.tokens, ahead, 1, mode="clip")
            rest = (cache, block, labels, count)
            cache, own = program.prefill.read(params, own, *rest)
        live = index < count[:, None]
        block = chosen_layers.put(program.exit, carry.exit, block, live)
        weights = program.weights(params, carry.drafter, carry.exit)
        out, cache = program.model(weights, cache, block, program.taps)
        start = carry.caches[TARGET].length
        at = jnp.minimum(start + count, carry.tokens.shape[1] - 1)[:, None]
        token = jnp.take_along_axis(carry.tokens, at, 1)[:, 0]
        path = jnp.broadcast_to(nodes.parents[:, 1:] + 1, (count.shape[0], nodes.depth))
        verdict = base.Verdict(path, count - 1, token)
        outcome = base.Outcome(nodes, verdict, out, None, count > 0, is_prompt=True)
        cache, policy = program.policy.retain(carry.policy, cache, outcome)
        after = replace(
            carry,
            caches={**carry.caches, TARGET: cache},
            policy=policy,
            length=jnp.minimum(start + count + 1, carry.length),
        )
        ctx = context(program, params, after)
        observed = replace(
            after,
            drafter=program.drafter.observe(ctx, carry.drafter, outcome),
            exit=program.exit.observe(ctx, carry.exit, outcome),
            length=carry.length,
        )
        return state_sharding.pinned(observed), own

    def more(both: tuple[DecodeState, base.State]) -> Array:
        carry, _ = both
        return (carry.caches[TARGET].length < carry.length - 1).any()

    return held.narrowed(lax.while_loop(more, body, (state, own))[0], before)


def look_ahead(
    program: Program, params: base.Params, state: DecodeState
) -> DecodeState:
    """Run the prompt's last token and what the policy guesses to follow it.

    Nothing is committed. Their keys lie behind the cache's, as a draft's would, and
    `finish` is called next.
    """
    policy, before = program.policy, state
    assert policy.lookahead is not None
    ctx = context(program, params, state)
    guess, known, calls = policy.lookahead(ctx, state.limit - state.length)
    tokens = jnp.concatenate([ctx.root[:, None], guess], axis=1)
    size = tokens.shape[1]
    state = held.widened(state, size)
    cache = state.caches[TARGET]
    nodes = tree.chain(tokens[:, 0], guess, known)
    slots, visibility = policy.place(state.policy, cache, nodes)
    index = jnp.arange(size, dtype=jnp.int32)
    live = index <= known[:, None]
    positions = state.length[:, None] - 1 + index
    slots = jnp.where(live, slots, cache.size + index)
    block = Block(tokens, positions, slots, visibility, logits_at=NONE)
    block = chosen_layers.put(program.exit, state.exit, block, live)
    weights = program.weights(params, state.drafter, state.exit)
    _, cache = program.model(weights, cache, block, program.taps)
    spent = state.counters.draft_calls + calls
    after = replace(
        state,
        caches={**state.caches, TARGET: cache},
        counters=replace(state.counters, draft_calls=spent),
    )
    return state_sharding.pinned(held.narrowed(after, before))


def finish(program: Program, state: DecodeState) -> DecodeState:
    """Let the policy go from the prompt to decoding; see `base.CachePolicy.finish`."""
    assert program.policy.finish is not None
    cache, policy = program.policy.finish(state.policy, state.caches[TARGET])
    return replace(state, caches={**state.caches, TARGET: cache}, policy=policy)


def chunk(tokens, length, cache, size):
    """Cut the next `size` prompt tokens of every row.

    Returns:
        A causal block, its chain, and the number of real tokens int32[B].
    """
    start = cache.length
    count = jnp.clip(length - 1 - start, 0, size)
    at = start[:, None] + jnp.arange(size, dtype=jnp.int32)
    part = jnp.take_along_axis(tokens, at, 1, mode="clip")
    block = causal_block(part, start, count, cache.size)
    return block, tree.chain(part[:, 0], part[:, 1:], count - 1), count


def fill_stream(model, cache, tokens, length, size):
    """Run a stream's prompts through its `(model, params)`; return the filled cache."""
    lm, params = model

    def body(cache: Any) -> Any:
        block, _, count = chunk(tokens, length, cache, size)
        _, cache = lm(params, cache, block)
        none = jnp.zeros((count.shape[0], 0), jnp.int32)
        return cache.commit(none, count - 1, linear=True)

    return lax.while_loop(lambda c: (c.length < length - 1).any(), body, cache)
