"""Prefill: the prompt goes through the model in causal chunks.

A chunk is a round with nothing to verify: a chain whose nodes are all accepted.
"""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from decoding import base, tree
from decoding.loops import state_sharding
from decoding.loops.decode import TARGET, DecodeState, Program, context
from models.base import ALL, NONE, causal_block


def prefill(
    program: Program, params: base.Params, state: DecodeState, prompts: dict
) -> DecodeState:
    """Fill the caches with every prompt's tokens but the last, chunk by chunk.

    `prompts` maps each stream to its prompts, `(tokens int32[B, P], length int32[B])`.
    """
    caches, roots = dict(state.caches), dict(state.roots)
    for name, stream in program.streams.items():
        tokens, length = prompts[name]
        model = (stream.model, base.read(params, stream.params))
        caches[name] = _fill_stream(model, caches[name], tokens, length, program.chunk)
        roots[name] = jnp.take_along_axis(tokens, (length - 1)[:, None], 1)[:, 0]
    state = replace(state, caches=caches, roots=roots)
    logits_at = ALL if program.drafter.prompt_logits else NONE

    def body(carry: DecodeState) -> DecodeState:
        cache = carry.caches[TARGET]
        block, nodes, count = chunk(carry.tokens, carry.length, cache, program.chunk)
        if program.policy.room is not None:
            ahead = chunk(carry.tokens[:, 1:], carry.length, cache, program.chunk)[0]
            room = program.policy.room(carry.policy, cache, ahead.tokens)
            count = jnp.minimum(count, room)
            nodes = tree.chain(block.tokens[:, 0], block.tokens[:, 1:], count - 1)
        slots, visibility = program.policy.place(carry.policy, cache, nodes)
        # Tokens past a row's chunk are written nowhere: no page has a slot for them.
        index = jnp.arange(program.chunk, dtype=jnp.int32)
        slots = jnp.where(index < count[:, None], slots, cache.size + index)
        block = replace(block, slots=slots, visibility=visibility, logits_at=logits_at)
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
        return state_sharding.pinned(observed)

    def more(carry: DecodeState) -> Array:
        return (carry.caches[TARGET].length < carry.length - 1).any()

    return lax.while_loop(more, body, state)


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


def _fill_stream(model, cache, tokens, length, size):
    """Run a stream's prompts through its `(model, params)`; return the filled cache."""
    lm, params = model

    def body(cache: Any) -> Any:
        block, _, count = chunk(tokens, length, cache, size)
        _, cache = lm(params, cache, block)
        none = jnp.zeros((count.shape[0], 0), jnp.int32)
        return cache.commit(none, count - 1, linear=True)

    return lax.while_loop(lambda c: (c.length < length - 1).any(), body, cache)
