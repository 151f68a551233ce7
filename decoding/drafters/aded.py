"""ADED: a table of trigrams replaces the draft model, and a tree search over it finds
the drafts worth verifying.

Liu, Lei, Zhang, Xu, *Adaptive Draft-Verification for Efficient Large Language Model
Decoding*, 2025, arXiv 2407.12021, sections 3.1 to 3.3. After tokens a, b the table
gives token w the weight P(w | a, b). Every round

    P(w | a, b) <- min(P(w | a, b) + boost, cap)     for the trigrams of the last tokens

and a Monte Carlo tree search from the last two tokens descends to the child of greatest

    Q(s, w) + (c1 + ln((n(s) + c2 + 1) / c2)) P(w | s) sqrt(n(s)) / (1 + n(s, w)),

unvisited children first. It adds all children of the leaf and goes to the last of them.
From there it draws tokens in proportion to P down to `depth`. It adds 1 + the sum of P
along the way to the score of every node on the path. Draft: the paths to the `kept`
nodes most visited, each with the token of greatest P after it. While these paths have
more than `choices` tokens together, the longest is dropped; a token that a path repeats
counts once.

n and Q n → `Search.numbers`; P → `Trigrams.weights`; boost, cap, c1, c2 → `Row`.
Defaults are those of the authors' code (Adaptix: `mcts_sub.rs`, `lib.rs`), whose 4
states and 24 nodes count the root, and whose driver passes 64 `choices`. The initial
weights are those of a corpus, P = count(a, b, w) / count(a, b): of `datastore`, a
directory as REST has (python -m experiments.datastore), or of
`text_lookup.trigram_table.table`, given as `memory`. Without either, the table starts
empty and grows from generated text.

The table is `Trigrams`, a hash of `size` pairs with linear probing. It outlives
requests and takes 4 size (2 + 2 successors) bytes: 6.8 MB.

Deviations from the paper and its code: a pair holds `successors` at all times (the code
prunes once, on loading). A new one replaces the weakest, as a new pair replaces the
weakest of those in its 8 places. The sum along the way takes each token's own weight,
where the code looks up the token before it. Of equally long paths the least visited is
dropped first (in the code a random one). The root's rollouts are keyed by request and
length.

Cost per call: `iterations` steps of the search, a few dozen small operations each, one
after another; a loop over rows and the last tokens to update; no model call.
"""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array, lax

from decoding import base
from decoding.catalogue import Card
from decoding.text_lookup import suffix_match, trigram_table
from decoding.text_lookup.trigram_table import Trigrams
from models.errors import MethodError

CARD = Card(
    paper="ADED, arXiv 2407.12021",
    guarantee=base.LAW,
    family="training-free",
    data=("boost", "cap", "c1", "c2", "datastore"),
    examples={
        "iterations": 12,
        "depth": 3,
        "kept": 6,
        "choices": 12,
        "successors": 4,
        "size": 64,
    },
    sources=("liu2025adaptive",),
)


@struct.dataclass
class Row:
    """The constants of one request."""

    boost: Array  # float32[B]
    cap: Array  # float32[B]
    c1: Array  # float32[B]
    c2: Array  # float32[B]


@struct.dataclass
class Search:
    """★ The tree of one row's search; the K children of a node are neighbours."""

    pairs: Array  # int32[M, 2]: the token before the node's, and its own; -1: no node
    parents: Array  # int32[M]
    first: Array  # int32[M]: the first child; 0: not expanded
    numbers: Array  # float32[M, 3]: P, visits, and the total of the scores


def drafter(
    boost: float = 0.04,
    cap: float = 3.0,
    c1: float = 32.0,
    c2: float = 8.0,
    iterations: int = 150,
    depth: int = 3,
    kept: int = 23,
    choices: int = 64,
    recent: int = 16,
    successors: int = 12,
    size: int = 65536,
    datastore: str = "",
) -> base.Drafter:
    """Search `depth` tokens deep and draft `kept` nodes, each with one more token.

    Of their paths the longest are dropped until `choices` tokens are left.
    `boost`, `cap`, `c1` and `c2` are those of the formulas above. A round updates the
    table from the `recent` last tokens. The table holds `size` pairs of tokens with
    `successors` each, at first those of `datastore` where one is named.
    """
    for name, value in (
        ("iterations", iterations),
        ("depth", depth),
        ("kept", kept),
        ("choices", choices),
        ("successors", successors),
    ):
        if value < 1:
            raise MethodError(f"{name}={value}: use at least 1")
    if recent < 3:
        raise MethodError(f"recent={recent}: a trigram takes 3 tokens")
    if size < trigram_table.PROBES:
        raise MethodError(
            f"size={size}: the table needs {trigram_table.PROBES} entries or more"
        )
    if not c2 > 0:
        raise MethodError(f"c2={c2}: use a number > 0")
    kept = min(kept, iterations * successors)
    learned = (
        trigram_table.of_datastore(datastore, size, successors) if datastore else None
    )

    def init(ctx: base.Context) -> base.State:
        def number(value: float) -> Array:
            return jnp.full(ctx.length.shape, value, jnp.float32)

        shared = learned or Trigrams(
            jnp.full((size, 2), -1, jnp.int32),
            jnp.full((size, successors), -1, jnp.int32),
            jnp.zeros((size, successors), jnp.float32),
        )
        shared = jax.tree.map(jnp.array, shared)  # copied: states are updated in place
        return base.State(Row(*map(number, (boost, cap, c1, c2))), shared)

    def draft(keys, ctx: base.Context, state: base.State):
        shared = state.shared
        last = suffix_match.last_tokens(ctx.tokens, ctx.length, 2)

        shape = (iterations, depth, successors)
        noise = jax.vmap(lambda key: jax.random.gumbel(key, shape))(keys)
        tokens, parents, there = _drafts(shared, last, state.row, noise, kept, choices)
        kind = jnp.where(there, base.CANDIDATE, base.PAD).astype(jnp.int32)
        nodes = base.TokenTree(tokens, parents, kind, depth=depth + 1)
        return nodes, state, ctx.cache

    def observe(ctx: base.Context, state: base.State, outcome: base.Outcome):
        if outcome.is_prompt:
            return state
        last = suffix_match.last_tokens(ctx.tokens, ctx.length, recent)[:, ::-1]
        parts = (last[:, :-2], last[:, 1:-1], last[:, 2:])
        valid = outcome.active[:, None] & (last[:, :-2] >= 0)
        more = jnp.broadcast_to(state.row.boost[:, None], valid.shape)
        most = jnp.broadcast_to(state.row.cap[:, None], valid.shape)
        items = [x.reshape(-1) for x in (*parts, valid, more, most)]
        return base.State(state.row, trigram_table.learn(state.shared, items))

    return base.Drafter(init, draft, observe, 2 * kept + 1, depth + 1, pauses=True)


def search(
    shared: Trigrams, before: Array, root: Array, c1: Array, c2: Array, noise: Array
) -> Search:
    """★ Search for I iterations from the pair of tokens (before, root).

    `noise` float32[I, depth, K] is Gumbel noise; `c1`, `c2` float32[] weigh priors.
    """
    iterations, depth, width = noise.shape
    # a loop of few, wide operations: its cost is the launch of each
    trials = jnp.arange(iterations + 1, dtype=jnp.float32)
    wishes = (c1 + jnp.log((trials + c2 + 1) / c2)) * jnp.sqrt(trials)
    race = jnp.exp(noise)  # the greatest P race is a token drawn in proportion to P
    size = 1 + iterations * width
    start = Search(
        jnp.full((size, 2), -1, jnp.int32).at[0].set(jnp.stack([before, root])),
        jnp.zeros((size,), jnp.int32),
        jnp.zeros((size,), jnp.int32),
        jnp.zeros((size, 3), jnp.float32),
    )

    def body(i: Array, tree: Search) -> Search:
        node, level, path = _descend(tree, wishes, depth, width)
        place = trigram_table.place_of(shared, *tree.pairs[node])
        grows = (level < depth) & (place >= 0)
        tokens = jnp.where(grows, shared.successors[place], -1)
        weights = jnp.where(tokens >= 0, shared.weights[place], 0.0)
        first = 1 + i * width
        latest = jnp.broadcast_to(tree.pairs[node, 1], tokens.shape)
        none = jnp.zeros_like(weights)
        tree = Search(
            _write(tree.pairs, jnp.stack([latest, tokens], 1), first),
            _write(tree.parents, jnp.broadcast_to(node, tokens.shape), first),
            tree.first.at[jnp.where(grows, node, size)].set(first, mode="drop"),
            _write(tree.numbers, jnp.stack([weights, none, none], 1), first),
        )
        last = first + jnp.maximum((tokens >= 0).sum() - 1, 0)
        level = level + grows
        path = path.at[jnp.where(grows, level, depth + 1)].set(last, mode="drop")
        begin = tree.pairs[jnp.where(grows, last, node)]
        along = tree.numbers.at[path, 0].get(mode="fill", fill_value=0.0).sum()
        gain = 1.0 + along + _roll(shared, begin, race[i], depth - level)
        more = jnp.stack([jnp.float32(1), gain])
        return replace(tree, numbers=tree.numbers.at[path, 1:].add(more, mode="drop"))

    return lax.fori_loop(0, iterations, body, start)


def _descend(
    tree: Search, wishes: Array, depth: int, width: int
) -> tuple[Array, Array, Array]:
    """Descend to a leaf; return it, its level, and the path int32[depth + 1] to it.

    The path is M past its end. Unvisited children come first.
    """

    def goes(carry: tuple) -> Array:
        return carry[2] > 0

    def step(carry: tuple) -> tuple:
        node, level, first, path = carry
        prior, n, total = lax.dynamic_slice_in_dim(tree.numbers, first, width).T
        wish = wishes[tree.numbers[node, 1].astype(jnp.int32)]
        value = total / jnp.maximum(n, 1) + wish * prior / (1 + n)
        value = jnp.where(n > 0, value, jnp.inf)
        there = lax.dynamic_slice_in_dim(tree.pairs, first, width)[:, 1] >= 0
        child = first + jnp.argmax(jnp.where(there, value, -jnp.inf))
        child = child.astype(jnp.int32)
        level = level + 1
        return child, level, tree.first[child], path.at[level].set(child)

    none = jnp.int32(0)
    path = jnp.full((depth + 1,), tree.parents.shape[0], jnp.int32).at[0].set(0)
    node, level, _, path = lax.while_loop(goes, step, (none, none, tree.first[0], path))
    return node, level, path


def _roll(shared: Trigrams, pair: Array, race: Array, steps: Array) -> Array:
    """Draw at most `steps` tokens after the pair; return their summed weight."""

    def goes(carry: tuple) -> Array:
        step, (_, b), _ = carry
        return (step < steps) & (b >= 0)

    def draw(carry: tuple) -> tuple:
        step, (a, b), gain = carry
        place = trigram_table.place_of(shared, a, b)
        weights = jnp.where(place >= 0, shared.weights[place], 0.0)
        pick = jnp.argmax(weights * race[step])
        token = jnp.where(place >= 0, shared.successors[place, pick], -1)
        return step + 1, (b, token), gain + weights[pick]

    start = (jnp.int32(0), (pair[0], pair[1]), jnp.float32(0))
    return lax.while_loop(goes, draw, start)[2]


def _write(array: Array, rows: Array, first: Array) -> Array:
    """Write `rows` from `first` on, as a slice: CPUs scatter row by row."""
    return lax.dynamic_update_slice_in_dim(array, rows, first, 0)


@functools.partial(jax.jit, static_argnums=(4, 5))
def _drafts(
    shared: Trigrams, last: Array, row: Row, noise: Array, kept: int, choices: int
) -> tuple[Array, ...]:
    """Draft for every row, from its last two tokens (the very last first)."""

    def one(last: Array, row: Row, noise: Array) -> tuple[Array, ...]:
        tree = search(shared, last[1], last[0], row.c1, row.c2, noise)
        return _choose(shared, tree, kept, noise.shape[1], choices)

    return jax.vmap(one)(last, row, noise)


def _choose(
    shared: Trigrams, tree: Search, kept: int, depth: int, choices: int
) -> tuple[Array, Array, Array]:
    """★ Choose the draft: its tokens, parents and presence [2 kept + 1].

    A node is visited no less often than its children and has a lower number, so the
    most visited are closed under parents, and in order.
    """
    visits, best = suffix_match.greatest(tree.numbers[1:, 1].astype(jnp.int32), kept)
    best = best + 1
    there = visits > 0
    above = best[:, None] == tree.parents[best][None]  # [parent, child]
    above = above & there & there[:, None]
    up = jnp.where(above.any(0), jnp.argmax(above, 0), -1)
    tokens = tree.pairs[best, 1]
    successors, weights = jax.vmap(lambda pair: trigram_table.after(shared, *pair))(
        tree.pairs[best]
    )
    more = jnp.take_along_axis(successors, jnp.argmax(weights, 1)[:, None], 1)[:, 0]
    extends = above & (tokens[None] == more[:, None])  # the child is the token after
    same = extends.any(0) & (more < 0)  # its path is its parent's
    stays = _cut(_lengths(tokens, more, up, depth), there & ~same, choices)
    inside = stays  # nodes on a path that stays
    for _ in range(depth - 1):
        inside = inside | (above & inside).any(1)
    inside = inside | (extends & stays[:, None]).any(0)
    extended = stays & (more >= 0) & ~extends.any(1)
    return (
        jnp.concatenate(
            [tree.pairs[:1, 1], jnp.maximum(tokens, 0), jnp.maximum(more, 0)]
        ),
        jnp.concatenate([jnp.full((1,), -1), up + 1, 1 + jnp.arange(kept)]).astype(
            jnp.int32
        ),
        jnp.concatenate([jnp.ones((1,), bool), inside, extended]),
    )


def _lengths(tokens: Array, more: Array, up: Array, depth: int) -> Array:
    """★ Count the different tokens int32[kept] of each node's path and `more`."""
    columns, at = [more], jnp.arange(tokens.shape[0])
    for _ in range(depth):
        columns.append(jnp.where(at >= 0, tokens[at], -1))
        at = jnp.where(at >= 0, up[at], -1)
    path = jnp.stack(columns, 1)
    again = jnp.tril(path[:, :, None] == path[:, None], -1).any(2)
    return ((path >= 0) & ~again).sum(1)


def _cut(lengths: Array, there: Array, choices: int) -> Array:
    """★ Drop the longest paths, of equals the last, until `choices` tokens are left."""
    lengths = jnp.where(there, lengths, 0)
    order = jnp.argsort(lengths, stable=True)
    fits = jnp.cumsum(lengths[order]) <= choices
    return there & jnp.zeros_like(there).at[order].set(fits)
