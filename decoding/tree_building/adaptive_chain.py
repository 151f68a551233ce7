"""Chains whose length is decided as they grow: what such drafters share."""

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
    """What a rule sees before draft `level` (0: the first) is written."""

    raw: Array  # float32[B, V]: the logits it comes from
    law: Array  # float32[B, V]: the same, warped
    token: Array  # int32[B]
    level: Array  # int32[]
    live: Array  # bool[B]: rows that draft still
    keys: Array  # key[B]: for the rule's own coins


@struct.dataclass
class Chain:
    """Drafts of every row, and what the rule remembered."""

    drawn: Array  # int32[B, M, k]: candidates of each level, the chain's own first
    count: Array  # int32[B]: of them hold
    calls: Array  # int32[B]: model calls beside the one that gave the first logits
    laws: Array | None  # float32[B, M, V]: what each was drawn from, where kept
    memory: Any
    cache: Any

    @property
    def tokens(self) -> Array:
        """int32[B, M]: the chain's own."""
        return self.drawn[:, :, 0]

    def tree(self, root: Array, draw: str, calls: Array | int = 1) -> base.TokenTree:
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
    """At most `length` drafts after the root, one model call each but the first.

    `logits` float32[B, V] are the root's, raw. `call(cache, token, level, live) ->
    logits, cache` forwards draft `level` (1: the first). `rule(memory, step) -> memory,
    emit, go`: whether the row's draft is written, and whether the row goes on after it.
    It may look at the token, but a token that was drawn and is not written must not be
    judged by itself. `memory` leaves are [B, ...] and stay as they are in rows that
    stopped. Ends when all rows have stopped. `width` candidates are drawn a level, the
    first of which is the draft.
    """
    batch, size = logits.shape
    kept = draw in (base.IID, base.NO_REPLACE)
    laws = jnp.zeros((batch, length, size), jnp.float32) if kept else None
    none = jnp.zeros((batch,), jnp.int32)

    def propose(level, raw, at, chain: Chain, live):
        law = ctx.warp(raw, at)
        folded = jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys, level)
        noise = ctx.noise(ctx.length + level) if draw == base.COUPLED else law
        found = child_sampling.candidates(draw, folded, law[:, None], width, noise)[
            :, 0
        ]
        coins = jax.vmap(jax.random.fold_in, in_axes=(0, None))(folded, 1)
        step = Step(raw, law, found[:, 0], level, live, coins)
        learned, emit, go = rule(chain.memory, step)
        emit = emit & live
        row = base.State(learned), base.State(chain.memory)
        chain = replace(
            chain,
            drawn=chain.drawn.at[:, level].set(found),
            count=chain.count + emit,
            laws=None if chain.laws is None else chain.laws.at[:, level].set(law),
            memory=tree.masked(live, *row).row,
        )
        return chain, emit & go

    def more(carry: tuple) -> Array:
        return (carry[0] < length) & carry[3].any()

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
    chain = Chain(drawn, none, none, laws, memory, cache)
    live = jnp.ones((batch,), bool)
    first, live = propose(jnp.int32(0), logits, ctx.transform, chain, live)
    start = (jnp.int32(1), ctx.transform, logits, live, first)
    return lax.while_loop(more, body, start)[4]


def one(cache: Any, token: Array, level: Array, live: Array) -> Block:
    """The block of draft `level` of a chain whose root stands at `cache.length`."""
    start = cache.length + level
    count = live.astype(jnp.int32)
    return causal_block(token[:, None], start, count, cache.size, logits_at=ALL)


def caller(model: LanguageModel, params: Any, run: Array | None = None) -> Callable:
    """`call` for `drafted`; `run` bool[L, 2] are the parts of the model that run."""

    def call(cache, token, level, live):
        block = replace(one(cache, token, level, live), run=run)
        out, cache = model(params, cache, block)
        assert out.logits is not None, "asked for in `one`"
        return out.logits[:, 0], cache

    return call


def root_logits(
    model: LanguageModel, params: Any, cache: Any, root: Array, run: Array | None = None
) -> tuple[Array, Any]:
    """The logits after the root, for drafters that run the target itself."""
    live = jnp.ones(root.shape, bool)
    return caller(model, params, run)(cache, root, jnp.int32(0), live)


# A draft model beside the target. Its cache holds committed tokens, and lags behind.


def keep(cache: Any, outcome: base.Outcome) -> Any:
    """`cache` after a round. The draft model need not have read the deepest draft.

    Of the round's calls the first caught up, and each of the others read one draft.
    """
    verdict = outcome.verdict
    seen = jnp.minimum(verdict.count, outcome.tree.calls - 1)
    return cache.commit(verdict.path, seen, linear=True)


def beside(model: LanguageModel, ctx: base.Context, room: int) -> Any:
    """An empty cache of the draft model, with `room` for the drafts of a round."""
    batch, size = ctx.tokens.shape
    dtype = jax.tree.leaves(ctx.params["draft"])[0].dtype
    return model.init_cache(batch, size + room, dtype)
