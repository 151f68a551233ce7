"""SuffixDecoding: draft as the texts with the longest equal ending continued, and more
tokens for a longer ending.

Oliaro, Jia, Campos, Qiao, *SuffixDecoding: Extreme Speculative Decoding for Emerging AI
Applications*, 2025, arXiv 2411.04975, section 3. For every length p at which the last p
tokens occur elsewhere, the suffix tree's subtree below them gives a speculation tree:

    C(N)     = COUNT(N) / sum of COUNT over N and its siblings
    D(N)     = D(parent of N) C(N);  D = 1 at the end of the match
    T_p      = the MAX(p) nodes of greatest D,  MAX(p) = floor(alpha p + offset)
    SCORE(T) = sum of D(N) over T;   draft = the T_p of greatest score, long p first

COUNT → `counts` of `_nodes`; D → `prob`; MAX → `budget`; alpha, offset → `Row`. Two
indices are searched, the request's own text and the outputs of this and earlier
requests; the better score wins, the request's own among equals. `tree` False drafts the
path of most frequent children instead, the default of the authors' code (Arctic
Inference, from which the other defaults are too).

The index of past outputs is `Shared`, pages of tokens in a ring: a request writes its
output to a page of its own as it grows, a long one to several, and the oldest page goes
first. It outlives requests as `memory` and takes 4 · pages · span bytes: 256 kB.

Deviations from the paper: no tree is built. The `places` longest matches (the latest of
equals) are compared pair by pair, which yields the same counts while no more places
match; a common short ending is so counted by its latest 64 places. A match does not
reach over the end of a page. Nodes below `least` (the code's min_token_prob) are left
out, as in the code; C is the paper's, without texts that end at the parent. The hybrid
with a draft model is drafters/suffix_model.

Cost per call: as many comparisons of [B, T] and [B, pages · span] integers as the
longest match is long; a top-k of K = `places`; for each of D = `most` levels some
passes over K × K numbers (with `tree`, products of K × K by K × K · D); no model call.
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array, lax

from decoding import base, tree
from decoding.catalogue import Card
from decoding.text_lookup import suffix_match
from models.errors import MethodError

CARD = Card(
    paper="SuffixDecoding, arXiv 2411.04975",
    guarantee=base.LAW,
    family="training-free",
    data=("alpha", "offset", "least"),
    examples={"most": 4, "tree": True, "pages": 8, "span": 16},
    sources=("oliaro2025suffixdecoding",),
)


@struct.dataclass
class Row:
    """The constants of one request, and its page."""

    alpha: Array  # float32[B]: drafts per matched token
    offset: Array  # float32[B]
    least: Array  # float32[B]: no node of smaller D is drafted
    ticket: Array  # int32[B]: ticket of the page being written; -1: none yet


@struct.dataclass
class Shared:
    """The outputs of this and earlier requests. Page i was given to ticket `owner`."""

    pages: Array  # int32[P, C]
    filled: Array  # int32[P]: valid tokens of a page
    owner: Array  # int32[P]: the ticket of its writer; -1: never used
    tickets: Array  # int32[]: tickets given so far; ticket t writes page t mod P


def drafter(
    alpha: float = 1.0,
    offset: float = 0.0,
    least: float = 0.1,
    most: int = 16,
    tree: bool = False,
    longest: int = 64,
    places: int = 64,
    pages: int = 128,
    span: int = 512,
) -> base.Drafter:
    """Draft alpha · match + offset tokens, at most `most`, as a path or a `tree`.

    Matches count up to `longest` tokens, and the `places` longest are read. Nodes of
    smaller D than `least` are left out. Past outputs fill `pages` of `span` tokens (0
    stores none).
    """
    for name, value in (("most", most), ("longest", longest), ("places", places)):
        if value < 1:
            raise MethodError(f"{name}={value}: use at least 1")
    if not alpha >= 0:
        raise MethodError(f"alpha={alpha}: use a number >= 0")
    if not 0 <= least <= 1:
        raise MethodError(f"least={least}: a probability lies in [0, 1]")
    if pages < 0:
        raise MethodError(f"pages={pages}: keep 0 pages or more")
    if span <= most:
        raise MethodError(
            f"span={span}: a page must hold a round's {most + 1} tokens, so use a span "
            f"above most={most}"
        )

    def init(ctx: base.Context) -> base.State:
        def number(value: float) -> Array:
            return jnp.full(ctx.length.shape, value, jnp.float32)

        row = Row(
            number(alpha), number(offset), number(least), jnp.full_like(ctx.length, -1)
        )
        none = jnp.zeros((pages,), jnp.int32)
        return base.State(
            row, Shared(jnp.zeros((pages, span), jnp.int32), none, none - 1, none.sum())
        )

    def draft(keys, ctx: base.Context, state: base.State):
        nodes = propose(ctx, state, most, longest, places, tree)[1]
        return nodes, state, ctx.cache

    def observe(ctx: base.Context, state: base.State, outcome: base.Outcome):
        if outcome.is_prompt or not pages:
            return state  # a prompt is no output
        return _store(state, outcome)

    return base.Drafter(init, draft, observe, most + 1, most, pauses=True)


def propose(
    ctx: base.Context,
    state: base.State,
    most: int,
    longest: int,
    places: int,
    branching: bool = False,
) -> tuple[Array, base.TokenTree]:
    """Return SCORE float32[B], the expected number of accepted drafts, and the draft.

    Arguments are those of `drafter`; `branching` is its `tree`.
    """
    row, shared = state.row, state.shared
    pattern = suffix_match.last_tokens(ctx.tokens, ctx.length, longest)
    sources = [(ctx.tokens[:, None], ctx.length[:, None])]
    if shared.pages.shape[0]:
        sources.append((shared.pages[None], shared.filled[None]))
    speculate = _trees if branching else _paths
    best: tuple | None = None
    for texts, ends in sources:
        lengths = suffix_match.matches(texts, ends, pattern)
        seen = suffix_match.best_places(lengths, texts, ends, places, most)
        new = speculate(*seen, row.alpha, row.offset, row.least)
        best = new if best is None else _better(best, new)
    assert best is not None
    score, count, tokens, parents = best
    return score, _nodes_of(ctx, count, tokens, parents, branching)


def _better(old: tuple, new: tuple) -> tuple:
    """Choose the draft of greater score in each row; the old one among equals."""
    wins = new[0] > old[0]

    def pick(a: Array, b: Array) -> Array:
        return jnp.where(wins.reshape(-1, *[1] * (a.ndim - 1)), b, a)

    return jax.tree.map(pick, old, new)


def _nodes_of(ctx, count, tokens, parents, branching: bool) -> base.TokenTree:
    """Make a chain of `tokens`, or a tree by `parents` where it is branching."""
    path = tree.chain(ctx.root, tokens, count)
    if not branching:
        return path
    roots = jnp.full_like(parents[:, :1], -1)
    return replace(path, parents=jnp.concatenate([roots, parents], 1), linear=False)


def _among(length: Array) -> Array:
    """Compare matches, bool[K, K] (a, j): place j matches as long as a, or longer."""
    live = length > 0
    return (length[None] >= length[:, None]) & live[None] & live[:, None]


def _bits(sets: Array) -> Array:
    """Pack sets bool[..., K] into words uint32[..., W] of 32 members."""
    members = sets.shape[-1]
    spare = [(0, 0)] * (sets.ndim - 1) + [(0, -members % 32)]
    words = jnp.pad(sets, spare).reshape(*sets.shape[:-1], -1, 32)
    place = jnp.arange(32, dtype=jnp.uint32)
    return (words.astype(jnp.uint32) << place).sum(-1, dtype=jnp.uint32)


def _nodes(length: Array, after: Array, count: Array) -> tuple[Array, ...]:
    """Compute the nodes below a match, and their D, for every match length.

    Of the places 0 .. K - 1 those in `among[a]` match at least as long as place a; only
    such lengths need be tried. The node (i, d) is the continuation of place i, d + 1
    tokens deep. Returns same [K, K, D], by places and depth, and prob [K, K, D], by
    (a, i, d).
    """
    same, among = suffix_match.shared_prefixes(after, count), _among(length)
    there = jnp.arange(after.shape[1]) < count[:, None]
    before = jnp.pad(same[..., :-1], ((0, 0), (0, 0), (1, 0)), constant_values=True)
    goes_on = before & there[:, None]

    def sum_over(sets: Array) -> Array:
        return jnp.einsum(
            "aj,jid->aid", among.astype(jnp.float32), sets.astype(jnp.float32)
        )

    prob = jnp.cumprod(sum_over(same) / jnp.maximum(sum_over(goes_on), 1), -1)
    return same, jnp.where(among[..., None] & there[None], prob, 0)


def _budget(length: Array, alpha: Array, offset: Array) -> Array:
    """Count the nodes int32[K] that a match may draft.

    Adding 1e-6 gives 3 for alpha 0.3 and p = 10.
    """
    return jnp.floor(alpha * length + offset + 1e-6).astype(jnp.int32)


def _path(levels, length, after, count, alpha, offset, least) -> tuple[Array, ...]:
    """★ Return score, number, tokens [D] and parents [D] of the best path of a row.

    Level by level, `left[a]` are the places of match length a whose text is the path
    so far: COUNT is how many of them continue as place i does. All rows walk `levels`
    levels.
    """
    depth = jnp.arange(after.shape[1], dtype=jnp.int32)

    def step(level: Array, carry: tuple) -> tuple:
        left, prob, chosen, path = carry
        tokens, there = after[:, level], level < count
        equal = (tokens[:, None] == tokens) & there[:, None] & there
        shared = _bits(left)[:, None] & _bits(equal)
        counts = lax.population_count(shared).sum(-1)
        counts = jnp.where(left, counts.astype(jnp.int32), 0)
        best, siblings = jnp.argmax(counts, 1), (left & there).sum(1)
        prob = prob * (counts.max(1) / jnp.maximum(siblings, 1))
        chosen, path = chosen.at[level].set(prob), path.at[level].set(tokens[best])
        return left & equal[best], prob, chosen, path

    chosen, tokens = jnp.zeros(after.T.shape), jnp.zeros_like(after.T)  # [D, K] each
    start = (_among(length), jnp.ones(length.shape), chosen, tokens)
    _, _, chosen, tokens = lax.fori_loop(0, levels, step, start)
    keep = (chosen > 0) & (chosen >= least)
    keep &= depth[:, None] < _budget(length, alpha, offset)
    keep = jnp.cumprod(keep, 0)
    score = (chosen * keep).sum(0)
    best = jnp.argmax(score)
    return score[best], keep[:, best].sum(), tokens[:, best], depth


def _tree(length, after, count, alpha, offset, least) -> tuple[Array, ...]:
    """★ Return the same as `_path`, of the best tree.

    D never grows along a path, so the greatest are closed under parents; among equals
    the shallower comes first, and so a parent before its children.
    """
    same, prob = _nodes(length, after, count)
    places, size = after.shape
    earlier = jnp.tril(jnp.ones((places, places), bool), -1).T  # [j, i]: j < i
    again = (same & earlier[..., None]).any(0)
    value = jnp.where(~again & (prob >= least), prob, 0)
    value = jnp.moveaxis(value, -1, 1).reshape(places, -1)
    value, at = lax.top_k(value, size)
    keep = (jnp.arange(size) < _budget(length, alpha, offset)[:, None]) & (value > 0)
    score = (value * keep).sum(1)
    best = jnp.argmax(score)
    level, place = at[best] // places, at[best] % places
    above = level[:, None] + 1 == level[None]
    above &= same[place[:, None], place[None], level[:, None]]
    parents = jnp.where(level == 0, 0, 1 + jnp.argmax(above, 0))
    parents = jnp.minimum(parents, jnp.arange(size))  # of invalid nodes
    return score[best], keep[best].sum(), after[place, level], parents.astype(jnp.int32)


_trees = jax.jit(jax.vmap(_tree))


@jax.jit
def _paths(length, after, count, alpha, offset, least) -> tuple[Array, ...]:
    """Return the best path of every row; levels that no row may draft are skipped."""
    budget = jax.vmap(_budget)(length, alpha, offset)
    levels = jnp.minimum(jnp.where(length > 0, budget, 0).max(), after.shape[-1])
    walk = jax.vmap(_path, in_axes=(None, *[0] * 6))
    return walk(levels, length, after, count, alpha, offset, least)


@jax.jit
def _store(state: base.State, outcome: base.Outcome) -> base.State:
    """Write the round's tokens to their rows' pages."""
    row, shared = state.row, state.shared
    pages, span = shared.pages.shape
    tokens, count = tree.committed(outcome.tree, outcome.verdict)
    active = outcome.active & (count > 0)
    count = jnp.where(active, count, 0)
    page = row.ticket % pages
    keeps = (row.ticket >= 0) & (shared.owner[page] == row.ticket)
    turns = active & ~(keeps & (shared.filled[page] + count <= span))
    ticket = jnp.where(turns, shared.tickets - 1 + jnp.cumsum(turns), row.ticket)
    page = ticket % pages
    owner = shared.owner.at[jnp.where(turns, page, pages)].max(ticket, mode="drop")
    writes = active & (owner[page] == ticket)  # of more rows than pages some write none
    begin = jnp.where(turns, 0, shared.filled[page])
    index = jnp.arange(tokens.shape[1], dtype=jnp.int32)
    inside = writes[:, None] & (index < count[:, None])
    at = jnp.where(inside, begin[:, None] + index, span)
    drop: Any = {"mode": "drop"}
    stored = shared.pages.at[page[:, None], at].set(tokens, **drop)
    filled = shared.filled.at[jnp.where(writes, page, pages)].set(begin + count, **drop)
    updated = Shared(stored, filled, owner, shared.tickets + turns.sum(dtype=jnp.int32))
    return base.State(replace(row, ticket=ticket), updated)
