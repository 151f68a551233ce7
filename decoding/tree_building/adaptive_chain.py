"""Chains whose length is decided draft by draft: the loop of adaptive drafters."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array, lax

from decoding import base, tree
from decoding.tree_building import child_sampling
from models.base import ALL, Block, LanguageModel, causal_block


@struct.dataclass
class Step:
    """A rule's input before draft `level` (0: the first) is written."""

    raw: Array  # float32[B, V]: the logits of `token`, raw
    law: Array  # float32[B, V]: the same logits, warped
    token: Array  # int32[B]
    level: Array  # int32[]
    live: Array  # bool[B]: rows that still draft
    keys: Array  # key[B]: for the rule's random numbers


@struct.dataclass
class Chain:
    """The drafts of every row, and the rule's memory."""

    drawn: Array  # int32[B, M, k]: candidates by level, the draft first
    count: Array  # int32[B]: valid levels
    calls: Array  # int32[B]: model calls after the root's
    laws: Array | None  # float32[B, M, V]: laws of the drafts, if needed
    memory: Any
    cache: Any

    @property
    def tokens(self) -> Array:
        """Return the drafts int32[B, M], without their siblings."""
        return self.drawn[:, :, 0]

    def tree(self, root: Array, draw: str, calls: Array | int = 1) -> base.TokenTree:
        """Return the chain as a tree; `calls` counts the root's model calls."""
        laws = self.laws
        if laws is not None:
            laws = jnp.pad(laws, ((0, 0), (0, 1), (0, 0)))
        calls = self.calls + calls
        fields = {"logits": laws, "calls": calls}
        return tree.chain(root, self.tokens, self.count, draw=draw, **fields)


Rule = Callable[[Any, Step], tuple[Any, Array, Array]]


def drafted(
    call: Callable[[Any, Array, Array, Array], tuple[Array, Any]],
    cache: Any,
    ctx: base.Context,
    keys: Array,
    draw: str,
    logits: Array,
    length: int,
    rule: Rule,
    memory: Any,
    width: int = 1,
) -> Chain:
    """Draft at most `length` tokens after the root, until all rows have stopped.

    Each draft but the first takes one model call.

    Args:
        call: `call(cache, token, level, live) -> logits, cache` forwards draft `level`
            (1: the first).
        cache: the model's; it holds the root.
        ctx: of this round.
        keys: key[B].
        draw: one of `base.DRAWS`.
        logits: float32[B, V], the root's, raw.
        length: M, the most drafts of a row.
        rule: `rule(memory, step) -> memory, emit, go`: whether the row's draft is
            written, and whether the row drafts on. Only `memory` and `go` may depend on
            the token: refusing a token for what it is would change its law.
        memory: the rule's; leaves [B, ...], unchanged in rows that stopped.
        width: k, candidates drawn a level, the first of which is the draft.
    """
    batch, size = logits.shape
    has_laws = draw in (base.IID, base.NO_REPLACE)
    laws = jnp.zeros((batch, length, size), jnp.float32) if has_laws else None
    zeros = jnp.zeros((batch,), jnp.int32)

    def propose(level, raw, at, chain: Chain, live):
        law = ctx.warp(raw, at)
        folded = jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys, level)
        noise = ctx.noise(ctx.length + level) if draw == base.COUPLED else law
        tokens = child_sampling.candidates(draw, folded, law[:, None], width, noise)[
            :, 0
        ]
        coins = jax.vmap(jax.random.fold_in, in_axes=(0, None))(folded, 1)
        step = Step(raw, law, tokens[:, 0], level, live, coins)
        updated, emit, go = rule(chain.memory, step)
        emit = emit & live
        row = base.State(updated), base.State(chain.memory)
        chain = replace(
            chain,
            drawn=chain.drawn.at[:, level].set(tokens),
            count=chain.count + emit,
            laws=None if chain.laws is None else chain.laws.at[:, level].set(law),
            memory=tree.masked(live, *row).row,
        )
        return chain, emit & go

    most = length if ctx.depth is None else jnp.minimum(length, ctx.depth)

    def more(carry: tuple) -> Array:
        return (carry[0] < most) & carry[3].any()

    def body(carry: tuple) -> tuple:
        level, at, raw, live, chain = carry
        token = lax.dynamic_index_in_dim(chain.tokens, level - 1, 1, keepdims=False)
        if ctx.law.advance is not None:
            at = tree.over_rows(ctx.law.advance, 3)(at, token, raw, {})
        raw, cache = call(chain.cache, token, level, live)
        chain = replace(chain, cache=cache, calls=chain.calls + live)
        chain, live = propose(level, raw, at, chain, live)
        return level + 1, at, raw, live, chain

    drawn = jnp.zeros((batch, length, width), jnp.int32)
    chain = Chain(drawn, zeros, zeros, laws, memory, cache)
    live = jnp.ones((batch,), bool)
    first, live = propose(jnp.int32(0), logits, ctx.transform, chain, live)
    start = (jnp.int32(1), ctx.transform, logits, live, first)
    return lax.while_loop(more, body, start)[4]


def one(cache: Any, token: Array, level: Array, live: Array) -> Block:
    """Return the block of draft `level` of a chain whose root is at `cache.length`."""
    start = cache.length + level
    count = live.astype(jnp.int32)
    return causal_block(token[:, None], start, count, cache.size, logits_at=ALL)


def caller(model: LanguageModel, params: Any, run: Array | None = None) -> Callable:
    """Return `call` for `drafted`; `run` bool[L, 2] are the sublayers that run."""

    def call(cache, token, level, live):
        block = replace(one(cache, token, level, live), run=run)
        out, cache = model(params, cache, block)
        assert out.logits is not None, "`one` requests the logits of all nodes"
        return out.logits[:, 0], cache

    return call


def root_logits(
    model: LanguageModel, params: Any, cache: Any, root: Array, run: Array | None = None
) -> tuple[Array, Any]:
    """Run the target on the root, and return the logits after it and the cache."""
    live = jnp.ones(root.shape, bool)
    return caller(model, params, run)(cache, root, jnp.int32(0), live)


# A draft model beside the target. Its cache holds committed tokens, and lags behind.


def keep(cache: Any, outcome: base.Outcome) -> Any:
    """Commit the accepted drafts that the draft model has read to its `cache`.

    The deepest draft may be unread: the round's first call caught up with the text, and
    each further call read one draft.
    """
    verdict = outcome.verdict
    seen = jnp.minimum(verdict.count, outcome.tree.calls - 1)
    return cache.commit(verdict.path, seen, linear=True)


def beside(model: LanguageModel, ctx: base.Context, room: int) -> Any:
    """Return an empty cache of the draft model, with `room` for a round's drafts."""
    batch, size = ctx.tokens.shape
    dtype = jax.tree.leaves(ctx.params["draft"])[0].dtype
    return model.init_cache(batch, size + room, dtype)
