"""ADED: a table of trigrams stands for the model, and a tree search over it finds the
drafts worth verifying.

Liu, Huang, Cai et al., *Adaptive Draft-Verification for Efficient Large Language Model
Decoding*, 2024, arXiv 2407.12021, sections 3.1 to 3.3. After tokens a, b the table
gives token w the weight P(w | a, b). Every round

    P(w | a, b) <- min(P(w | a, b) + boost, cap)     for the trigrams of the last tokens

and a Monte Carlo tree search from the last two tokens descends to the child of greatest

    Q(s, w) + (c1 + ln((n(s) + c2 + 1) / c2)) P(w | s) sqrt(n(s)) / (1 + n(s, w)),

unvisited children first; adds all children of the leaf, goes to the last of them, draws
tokens in proportion to P down to `depth`, and adds 1 + the sum of P along the way to
the score of every node on the path. Draft: the `kept` nodes most visited, and after
each the token of greatest P.

n → `Search.visits`; Q → `Search.total` ÷ n; P → `Shared.weights`; boost, cap, c1, c2 →
`Row`; defaults are those of the authors' code (Adaptix). The initial weights are those
of a corpus, P = count(a, b, w) / count(a, b): of `datastore`, a directory as REST has
(python -m experiments.datastore), or of `table`, given as `memory`. Without, the table
starts empty and knows what was written since.

The table is `Shared`, a hash of `size` pairs with linear probing; it outlives requests
and takes 4 size (2 + 2 successors) bytes: 6.8 MB.

Deviations from the paper and its code: a pair holds `successors` at all times (the code
prunes once, on loading), and a new one replaces the weakest, as a new pair replaces the
weakest of those in its PROBES places. The sum along the way takes each token's own
weight, where the code looks up the token before it. The root's rollouts are keyed by
request and length.

Cost per call: `iterations` steps of the search, some 60 small operations each, one
after another; a loop over rows and the last tokens to update; no model call.
"""

import functools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array, lax

from decoding import base, lookup
from decoding import datastore as datastores
from decoding.catalogue import Card
from models.errors import MethodError

CARD = Card(paper="ADED, arXiv 2407.12021", guarantee=base.LAW)

PROBES = 8


@struct.dataclass
class Row:
    """The numbers of one request."""

    boost: Array  # float32[B]
    cap: Array  # float32[B]
    c1: Array  # float32[B]
    c2: Array  # float32[B]


@struct.dataclass
class Shared:
    """The table: an entry is a pair of tokens and what may follow it."""

    keys: Array  # int32[H, 2]; -1: no entry
    successors: Array  # int32[H, K]; -1: none
    weights: Array  # float32[H, K]; 0: none


@struct.dataclass
class Search:
    """★ The tree of one row's search; the K children of a node are neighbours."""

    tokens: Array  # int32[M]; -1: no such child
    parents: Array  # int32[M]
    prior: Array  # float32[M]: P
    visits: Array  # int32[M]
    total: Array  # float32[M]
    first: Array  # int32[M]: the first child; 0: not expanded


def drafter(
    boost: float = 0.04,
    cap: float = 3.0,
    c1: float = 32.0,
    c2: float = 8.0,
    iterations: int = 150,
    depth: int = 4,
    kept: int = 24,
    recent: int = 16,
    successors: int = 12,
    size: int = 65536,
    datastore: str = "",
) -> base.Drafter:
    """Search `depth` tokens deep and draft `kept` nodes, each with one more token.

    `recent` tokens are learned from a round; `size` pairs of tokens are kept, at first
    those of `datastore` where one is named.
    """
    for name, value in (
        ("iterations", iterations),
        ("depth", depth),
        ("kept", kept),
        ("successors", successors),
    ):
        if value < 1:
            raise MethodError(f"{name}={value}: use at least 1")
    if recent < 3:
        raise MethodError(f"recent={recent}: a trigram takes 3 tokens")
    if size < PROBES:
        raise MethodError(f"size={size}: the table needs {PROBES} entries or more")
    if not c2 > 0:
        raise MethodError(f"c2={c2}: use a number > 0")
    kept = min(kept, iterations * successors)
    learned = _of_datastore(datastore, size, successors) if datastore else None

    def init(ctx: base.Context) -> base.State:
        def number(value: float) -> Array:
            return jnp.full(ctx.length.shape, value, jnp.float32)

        shared = learned or Shared(
            jnp.full((size, 2), -1, jnp.int32),
            jnp.full((size, successors), -1, jnp.int32),
            jnp.zeros((size, successors), jnp.float32),
        )
        shared = jax.tree.map(jnp.array, shared)  # its own: states are updated in place
        return base.State(Row(*map(number, (boost, cap, c1, c2))), shared)

    def draft(keys, ctx: base.Context, state: base.State):
        shared = state.shared
        last = lookup.last_tokens(ctx.tokens, ctx.length, 2)

        shape = (iterations, depth, successors)
        noise = jax.vmap(lambda key: jax.random.gumbel(key, shape))(keys)
        tokens, parents, there = _drafts(shared, last, state.row, noise, kept)
        kind = jnp.where(there, base.CANDIDATE, base.PAD).astype(jnp.int32)
        nodes = base.TokenTree(tokens, parents, kind, depth=depth + 1)
        return nodes, state, ctx.cache

    def observe(ctx: base.Context, state: base.State, outcome: base.Outcome):
        if outcome.warped is None:
            return state
        last = lookup.last_tokens(ctx.tokens, ctx.length, recent)[:, ::-1]
        parts = (last[:, :-2], last[:, 1:-1], last[:, 2:])
        valid = outcome.active[:, None] & (last[:, :-2] >= 0)
        more = jnp.broadcast_to(state.row.boost[:, None], valid.shape)
        most = jnp.broadcast_to(state.row.cap[:, None], valid.shape)
        items = [x.reshape(-1) for x in (*parts, valid, more, most)]
        return base.State(state.row, _learn_all(state.shared, items))

    return base.Drafter(init, draft, observe, nodes=2 * kept + 1, depth=depth + 1)


def table(
    texts: Iterable[Sequence[int]], size: int = 65536, successors: int = 12
) -> Shared:
    """The weights of a corpus of token lists, for `memory`; the most frequent pairs."""
    counts: dict[tuple[int, int], Counter[int]] = {}
    for text in texts:
        for a, b, w in zip(text, text[1:], text[2:]):
            counts.setdefault((int(a), int(b)), Counter())[int(w)] += 1
    keys = np.full((size, 2), -1, np.int32)
    found = np.full((size, successors), -1, np.int32)
    weights = np.zeros((size, successors), np.float32)
    order = sorted(counts, key=lambda pair: -counts[pair].total())
    pairs = jnp.asarray(np.array(order, np.int32).reshape(-1, 2))
    homes = np.asarray(_places(pairs[:, 0], pairs[:, 1], size))
    for pair, places in zip(order, homes):
        free = places[keys[places, 0] < 0]
        if free.size:
            total = counts[pair].total()
            best = counts[pair].most_common(successors)
            keys[free[0]] = pair
            found[free[0], : len(best)] = [w for w, _ in best]
            weights[free[0], : len(best)] = [n / total for _, n in best]
    return Shared(jnp.asarray(keys), jnp.asarray(found), jnp.asarray(weights))


@functools.cache
def _of_datastore(directory: str, size: int, successors: int) -> Shared:
    """The weights of a datastore's texts, as numpy holds them."""
    tokens = np.asarray(datastores.load(directory).tokens)
    texts = np.split(tokens, np.flatnonzero(tokens == datastores.END))
    found = table((t[t != datastores.END] for t in texts), size, successors)
    return jax.tree.map(np.asarray, found)


def _places(a: Array, b: Array, size: int) -> Array:
    """int32[..., PROBES]: where the pair may stand."""
    a, b = jnp.asarray(a, jnp.uint32), jnp.asarray(b, jnp.uint32)
    mixed = (a * jnp.uint32(2654435761)) ^ (b * jnp.uint32(2246822519))
    mixed = (mixed ^ (mixed >> 15)) * jnp.uint32(3266489917)
    home = (mixed ^ (mixed >> 13)) % jnp.uint32(size)
    probes = jnp.arange(PROBES, dtype=jnp.uint32)
    return ((home[..., None] + probes) % jnp.uint32(size)).astype(jnp.int32)


def after(shared: Shared, a: Array, b: Array) -> tuple[Array, Array]:
    """★ Tokens int32[K] (-1: none) and weights float32[K] after the pair a, b."""
    places = _places(a, b, shared.keys.shape[0])
    hit = (shared.keys[places] == jnp.stack([a, b])).all(1)
    place = places[jnp.argmax(hit)]
    known = hit.any() & (a >= 0)
    tokens = jnp.where(known, shared.successors[place], -1)
    return tokens, jnp.where(tokens >= 0, shared.weights[place], 0.0)


@jax.jit
def _learn_all(shared: Shared, items: list[Array]) -> Shared:
    """The trigrams of all rows, one after another."""
    return lax.scan(lambda table, x: (_learn(table, *x), None), shared, items)[0]


def _learn(shared: Shared, a, b, w, valid, boost, cap) -> Shared:
    """★ One trigram more."""
    size = shared.keys.shape[0]
    places = _places(a, b, size)
    pair = jnp.stack([a, b])
    hit = (shared.keys[places] == pair).all(1)
    strength = jnp.where(
        shared.keys[places, 0] < 0, -1.0, shared.weights[places].max(1)
    )
    place = places[jnp.where(hit.any(), jnp.argmax(hit), jnp.argmin(strength))]
    tokens = jnp.where(hit.any(), shared.successors[place], -1)
    weights = jnp.where(hit.any(), shared.weights[place], 0.0)
    known = tokens == w
    at = jnp.where(known.any(), jnp.argmax(known), jnp.argmin(weights))
    weight = jnp.minimum(jnp.where(known.any(), weights[at], 0.0) + boost, cap)
    place = jnp.where(valid, place, size)
    put: Any = {"mode": "drop"}
    return Shared(
        shared.keys.at[place].set(pair, **put),
        shared.successors.at[place].set(tokens.at[at].set(w), **put),
        shared.weights.at[place].set(weights.at[at].set(weight), **put),
    )


def search(
    shared: Shared, before: Array, root: Array, c1: Array, c2: Array, noise: Array
) -> Search:
    """★ The tree after as many iterations as `noise` [I, depth, K] has, from a pair."""
    iterations, depth, width = noise.shape
    nodes = 1 + iterations * width
    none = jnp.zeros((nodes,), jnp.int32)
    start = Search(
        (none - 1).at[0].set(root),
        none,
        none.astype(jnp.float32),
        none,
        none.astype(jnp.float32),
        none,
    )
    ids = jnp.arange(width)

    def body(i: Array, tree: Search) -> Search:
        node, level, moved = jnp.int32(0), jnp.int32(0), jnp.bool_(True)
        path = jnp.full((depth + 1,), nodes, jnp.int32).at[0].set(0)
        for d in range(depth):
            kids = tree.first[node] + ids
            there = (tree.first[node] > 0) & (tree.tokens[kids] >= 0)
            child = kids[
                jnp.argmax(jnp.where(there, _value(tree, node, kids, c1, c2), -jnp.inf))
            ]
            moved = moved & there.any()
            node = jnp.where(moved, child, node)
            path = jnp.where(moved, path.at[d + 1].set(child), path)
            level = level + moved
        up = tree.tokens[tree.parents[node]]
        up = jnp.where(node == 0, before, up)
        tokens, weights = after(shared, up, tree.tokens[node])
        grows = (level < depth) & (tokens[0] >= 0)
        kids = 1 + i * width + ids
        at = jnp.where(grows, kids, nodes)
        put: Any = {"mode": "drop"}
        tree = replace(
            tree,
            tokens=tree.tokens.at[at].set(tokens, **put),
            parents=tree.parents.at[at].set(node, **put),
            prior=tree.prior.at[at].set(weights, **put),
            first=tree.first.at[jnp.where(grows, node, nodes)].set(kids[0], **put),
        )
        last = kids[jnp.maximum((tokens >= 0).sum() - 1, 0)]
        level = level + grows
        path = path.at[jnp.where(grows, level, depth + 1)].set(last, mode="drop")
        node = jnp.where(grows, last, node)
        gain = 1.0 + jnp.where(path > 0, tree.prior.at[path].get(**FILL), 0.0).sum()
        a = jnp.where(node == 0, before, tree.tokens[tree.parents[node]])
        b, going = tree.tokens[node], jnp.bool_(True)
        for d in range(depth):
            tokens, weights = after(shared, a, b)
            going = going & (level + d < depth) & (tokens[0] >= 0)
            law = jnp.where(tokens >= 0, jnp.log(weights), -jnp.inf)
            pick = jnp.argmax(law + noise[i, d])
            gain = gain + jnp.where(going, weights[pick], 0.0)
            a, b = b, tokens[pick]
        return replace(
            tree,
            visits=tree.visits.at[path].add(1, **put),
            total=tree.total.at[path].add(gain, **put),
        )

    return lax.fori_loop(0, iterations, body, start)


FILL: Any = {"mode": "fill", "fill_value": 0.0}


def _value(tree: Search, node: Array, kids: Array, c1: Array, c2: Array) -> Array:
    """float32[K]: how much the search wants each child; unvisited ones most."""
    n, here = tree.visits[kids], tree.visits[node].astype(jnp.float32)
    mean = tree.total[kids] / jnp.maximum(n, 1)
    explore = (c1 + jnp.log((here + c2 + 1) / c2)) * tree.prior[kids]
    return jnp.where(n > 0, mean + explore * jnp.sqrt(here) / (1 + n), jnp.inf)


@functools.partial(jax.jit, static_argnums=4)
def _drafts(
    shared: Shared, last: Array, row: Row, noise: Array, kept: int
) -> tuple[Array, ...]:
    """Every row's draft, from its last two tokens (the very last first)."""

    def one(last: Array, row: Row, noise: Array) -> tuple[Array, ...]:
        found = search(shared, last[1], last[0], row.c1, row.c2, noise)
        return _choose(shared, found, kept)

    return jax.vmap(one)(last, row, noise)


def _choose(shared: Shared, tree: Search, kept: int) -> tuple[Array, Array, Array]:
    """★ Tokens, parents and presence [2 kept + 1] of the draft.

    A node is visited no less often than its children and has a lower number, so the
    most visited are closed under parents, and in order.
    """
    visits, best = lookup.greatest(tree.visits[1:], kept)
    best = best + 1
    there = visits > 0
    above = best[:, None] == tree.parents[best][None]  # [parent, child]
    parents = jnp.where(above.any(0), 1 + jnp.argmax(above, 0), 0)
    tokens = tree.tokens[best]
    found, weights = jax.vmap(lambda a, b: after(shared, a, b))(
        tree.tokens[tree.parents[best]], tokens
    )
    more = jnp.take_along_axis(found, jnp.argmax(weights, 1)[:, None], 1)[:, 0]
    again = (above & there[None] & (tokens[None] == more[:, None])).any(1)
    own = 1 + jnp.arange(kept)
    return (
        jnp.concatenate(
            [tree.tokens[:1], jnp.maximum(tokens, 0), jnp.maximum(more, 0)]
        ),
        jnp.concatenate([jnp.full((1,), -1), parents, own]).astype(jnp.int32),
        jnp.concatenate([jnp.ones((1,), bool), there, there & (more >= 0) & ~again]),
    )
