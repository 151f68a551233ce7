"""Lookahead decoding: Jacobi iteration on a window of the future fills a pool of
n-grams; those that begin with the last token are verified in the same call.

Fu, Bailis, Stoica, Zhang, *Break the Sequential Dependency of LLM Inference Using
Lookahead Decoding*, 2024, arXiv 2402.02057, section 3. The window holds guesses w[l, c]
for the position l + c after the last token x, of levels l = 0 .. N - 2 (trajectory of
the iteration) and columns c = 0 .. W - 1; w[0, 0] = x. A round computes

    w[N-1, c] = argmax p(. | text, w[0, 0 .. c], w[1 .. N-2, c])        for all columns
    pool[w[0, c]] <- (w[1, c], .., w[N-1, c])         at most G, the oldest gives way
    w[l, c]   = w[l+1, c];   one position a round, however many tokens were accepted
    draft     = the N-grams of pool[x]

N → `ngram`; W → `window`; G → `guesses`; w → `Row.window`; p → the raw target. A window
token sees a path of the tree: along level 0 to its column, then up the levels. So the
window is AUX nodes, the N-grams are CANDIDATE chains (equal beginnings
share their nodes), and both go through one call. The arg-max is taken at temperature >
0 too, as in the paper.

The window starts as W + N - 2 columns of random tokens of the text; each of the first
N - 2 rounds fills a level and drops a column, so that W full ones are left, and nothing
enters the pool before. A predicted end of text, which no n-gram holds, becomes a random
token of the text as well.

The window moves as in the authors' code (ALWAYS_FWD_ONE = 1; its greedy search asserts
it): after a round that accepted drafts it lags behind the text.

Deviations from the paper and its code: the pool belongs to all rows and outlives a
request (`memory`); the authors' pool is of one request. Pooled n-grams are verified
while the window fills. A matched n-gram is accepted to its end, where the code stops
one token early. Defaults are those of the authors' README (5, 7, 7); the paper takes
W = G = 15 for 7B models on A100.

Cost per call: (N - 1)(W + G) nodes in the block, where W ≥ N - 2; B · W updates of one
pool entry, one after another (they may meet). The pool takes 4 V G (N - 1) bytes:
3.6 MB at V = 32,000.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array, lax

from decoding import base, vocab
from decoding.catalogue import Card
from decoding.text_lookup import suffix_match
from models.errors import MethodError

CARD = Card(
    paper="Lookahead decoding, arXiv 2402.02057",
    guarantee=base.LAW,
    family="training-free",
    needs=("vocab_size", "eos"),
    examples={"ngram": 3, "window": 3, "guesses": 3},
    sources=("fu2024break",),
)


@struct.dataclass
class Row:
    """One request's window."""

    window: Array  # int32[B, N - 1, W + N - 2]; -1: of the text; [0, 0] unused
    levels: Array  # int32[B]: levels that are filled, l = 1 to N - 1, to W + N - 1 - l


@struct.dataclass
class Shared:
    """The pool: a token's G continuations, the newest last."""

    pool: Array  # int32[V, G, N - 1]; -1: empty


def drafter(
    vocab_size: int,
    eos: tuple[int, ...] = (),
    ngram: int = 5,
    window: int = 7,
    guesses: int = 7,
    pool_from_prompt: bool = False,
) -> base.Drafter:
    """Draft at most `guesses` n-grams from the pool, and fill it by the window.

    Args:
        vocab_size: V.
        eos: tokens that end a text; no n-gram holds them.
        ngram: N, tokens of an n-gram.
        window: W, columns.
        guesses: G, n-grams kept and verified per first token.
        pool_from_prompt: put the prompt's n-grams into the pool too.
    """
    if ngram < 3:
        raise MethodError(f"ngram={ngram}: a trajectory needs n-grams of 3 or more")
    if window < 1 or guesses < 1:
        raise MethodError(f"window={window}, guesses={guesses}: use at least 1 of each")
    top = ngram - 1  # levels, and tokens of a pool entry
    shape = _Layout(top, window, guesses)

    def init(ctx: base.Context) -> base.State:
        empty = jnp.full((*ctx.length.shape, top, shape.columns), -1, jnp.int32)
        pool = jnp.full((vocab_size, guesses, top), -1, jnp.int32)
        return base.State(Row(empty, jnp.ones_like(ctx.length)), Shared(pool))

    def draft(keys, ctx: base.Context, state: base.State):
        row = state.row
        filled = _refill(keys, ctx.tokens, ctx.length, row.window)
        filled = filled.at[:, 0, 0].set(ctx.root)
        grams = state.shared.pool[ctx.root]  # [B, G, N - 1]
        count = jnp.where(grams[..., 0] >= 0, top, 0)
        same = jax.vmap(suffix_match.shared_prefixes)(grams, count)
        first = jnp.argmax(same, 1).astype(jnp.int32)  # [B, G, N - 1]: its first n-gram
        fresh = first == jnp.arange(guesses)[:, None]
        there = (count > 0)[..., None] & fresh
        at, above, beside = (table[row.levels - 1] for table in shape.tables)
        window_tokens = jnp.take_along_axis(filled.reshape(len(filled), -1), at, 1)
        drafts = jnp.where(there, base.CANDIDATE, base.PAD)
        nodes = base.TokenTree(
            shape.flat(window_tokens, jnp.maximum(grams, 0)),
            shape.flat(above, shape.chains(first)),
            shape.flat(beside, drafts).astype(jnp.int32),
            draw=base.POINT,
            depth=shape.depth,
            aux=True,
        )
        return nodes, replace(state, row=replace(row, window=filled)), ctx.cache

    def observe(ctx: base.Context, state: base.State, outcome: base.Outcome):
        if outcome.is_prompt:
            if not pool_from_prompt:
                return state
            keys, grams, valid = _prompt_grams(ctx, outcome, ngram)
            pool = insert(state.shared.pool, keys, grams, valid)
            return replace(state, shared=Shared(pool))
        if outcome.is_pause:
            return state  # the window rests
        row, logits = state.row, outcome.target.logits
        assert logits is not None
        rows = jnp.arange(row.levels.shape[0])[:, None]
        top_nodes = shape.top_nodes[row.levels - 1]  # [B, W + N - 2]
        best = vocab.argmax(logits[rows, top_nodes])
        ended = jnp.isin(best, jnp.asarray(eos, jnp.int32))
        ran = outcome.tree.kind[rows, top_nodes] != base.PAD
        moves = outcome.active & ran.all(1)  # the window rests in a pause
        full = row.levels == top
        grams = jnp.concatenate([row.window[:, 1:], best[:, None]], 1)[..., :window]
        valid = (full & moves)[:, None] & ~ended[:, :window]
        pool = insert(
            state.shared.pool,
            row.window[:, 0, :window].reshape(-1),
            grams.swapaxes(1, 2).reshape(-1, top),
            valid.reshape(-1),
        )
        moved = _move(row, jnp.where(ended, -1, best))
        updated = jax.tree.map(
            lambda new, old: jnp.where(
                moves.reshape(-1, *[1] * (new.ndim - 1)), new, old
            ),
            moved,
            row,
        )
        return base.State(updated, Shared(pool))

    return base.Drafter(init, draft, observe, shape.nodes, shape.depth, pauses=True)


class _Layout:
    """Places of window and n-grams in the block: the window first, level by level.

    With l levels filled, it has l (W + N - 1 - l) nodes.
    """

    def __init__(self, top: int, window: int, guesses: int):
        self.top, self.columns = top, window + top - 1
        widths = [self.columns - level for level in range(top)]
        self.size = max(width * (1 + level) for level, width in enumerate(widths))
        nodes = np.arange(self.size)
        tables: list[list[np.ndarray]] = [[], [], []]
        top_nodes = []
        for level, width in enumerate(widths):  # of the top level
            place = np.divmod(nodes, width)
            there = place[0] <= level
            kind = np.where(there, base.AUX, base.PAD)
            kind[0] = base.CANDIDATE
            tables[0].append(np.where(there, place[0] * self.columns + place[1], 0))
            tables[1].append(np.where(place[0] == 0, nodes - 1, nodes - width))
            tables[2].append(kind)
            column = np.minimum(np.arange(self.columns), width - 1)
            top_nodes.append(level * width + column)
        # By levels, int32[top, size]: each node's place in the window, parent and kind.
        self.tables = [jnp.asarray(np.stack(table), jnp.int32) for table in tables]
        self.top_nodes = jnp.asarray(top_nodes, jnp.int32)  # [top, columns]
        self.nodes = self.size + guesses * top
        self.depth = max(self.columns - 1, top)

    def chains(self, first: Array) -> Array:
        """Return parents int32[B, G, N - 1], each in the first n-gram that has it."""
        start = self.size
        level = jnp.arange(self.top - 1, dtype=jnp.int32)
        above = start + first[..., :-1] * self.top + level
        return jnp.pad(above, ((0, 0), (0, 0), (1, 0)))

    def flat(self, window: Array, grams: Array) -> Array:
        """Concatenate values of window and n-grams, [B, nodes]."""
        return jnp.concatenate([window, grams.reshape(len(window), -1)], 1)


@jax.jit
def _refill(keys: Array, tokens: Array, length: Array, window: Array) -> Array:
    """Fill the window's empty places with random tokens of the text."""

    def one(key: Array, text: Array, length: Array, window: Array) -> Array:
        at = jax.random.randint(key, window.shape, 0, length)
        return jnp.where(window < 0, text[at], window)

    return jax.vmap(one)(keys, tokens, length, window)


@jax.jit
def _move(row: Row, best: Array) -> Row:
    """Move the window by one position, with the new level `best` int32[B, columns].

    A full window loses its lowest level, and thereby one position; else the new level
    is added, and the columns move one to the left.
    """
    _, top, _ = row.window.shape
    full = (row.levels == top)[:, None, None]
    down = jnp.concatenate([row.window[:, 1:], best[:, None]], 1)
    level = jnp.arange(top)[None, :, None]
    added = jnp.where(level == row.levels[:, None, None], best[:, None], row.window)
    left = jnp.pad(added[:, :, 1:], ((0, 0), (0, 0), (0, 1)), constant_values=-1)
    return Row(jnp.where(full, down, left), jnp.minimum(row.levels + 1, top))


def _prompt_grams(ctx, outcome, ngram: int) -> tuple[Array, Array, Array]:
    """Collect the prompt's n-grams that end in this chunk, in the text's order."""
    size = outcome.tree.tokens.shape[1]
    count = outcome.verdict.count + 1
    ends = (ctx.length - count)[:, None] + jnp.arange(size, dtype=jnp.int32)
    begins = ends - (ngram - 1)
    valid = outcome.active[:, None] & (begins >= 0) & (ends < ctx.length[:, None])
    at = begins[..., None] + jnp.arange(ngram, dtype=jnp.int32)
    rows = jnp.arange(ctx.length.shape[0])[:, None, None]
    grams = ctx.tokens[rows, jnp.maximum(at, 0)].reshape(-1, ngram)
    return grams[:, 0], grams[:, 1:], valid.reshape(-1)


@jax.jit
def insert(pool: Array, keys: Array, grams: Array, valid: Array) -> Array:
    """Insert `grams` int32[M, N - 1] under `keys` int32[M], one after another.

    Only where `valid` bool[M]. A known n-gram becomes the newest; a new one replaces
    the oldest.
    """
    guesses = pool.shape[1]
    place = jnp.arange(guesses)

    def one(pool: Array, item: tuple) -> tuple[Array, None]:
        key, gram, valid = item
        entry = pool[key]
        known = (entry == gram).all(1)
        gone = jnp.where(known.any(), jnp.argmax(known), 0)
        shifted = entry[jnp.minimum(place + (place >= gone), guesses - 1)]
        entry = jnp.where(valid, shifted.at[-1].set(gram), entry)
        return pool.at[key].set(entry), None

    return lax.scan(one, pool, (keys, grams, valid))[0]
