"""Trees of draft tokens: ancestor bits, transform states, the verified walk."""

from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
from jax import Array, lax

from decoding import base
from models.base import Visibility, pack_bits


def root_only(token: Array) -> base.TokenTree:
    """Build the one-node tree of plain decoding from `token` int32[B]."""
    ones = jnp.ones((token.shape[0], 1), jnp.int32)
    return base.TokenTree(token[:, None], -ones, ones, linear=True)


def chain(
    root: Array, drafts: Array, count: Array, *, draw: str = base.POINT, **fields
) -> base.TokenTree:
    """Build a chain of drafts below the root.

    Args:
        root: int32[B], the last committed token.
        drafts: int32[B, M].
        count: int32[B], how many of `drafts` are candidates; the rest is padding.
        draw: how the drafts were drawn, one of `base.DRAWS`.
        **fields: further fields of the TokenTree (`logits`, `calls`, `slots`).
    """
    batch, size = drafts.shape
    index = jnp.arange(size + 1, dtype=jnp.int32)
    kind = jnp.where(index <= count[:, None], base.CANDIDATE, base.PAD)
    return base.TokenTree(
        jnp.concatenate([root[:, None], drafts], 1).astype(jnp.int32),
        jnp.broadcast_to(index - 1, (batch, size + 1)),
        kind.astype(jnp.int32),
        draw=draw,
        depth=size,
        linear=True,
        **fields,
    )


def select(tree: base.TokenTree, kept: Array) -> base.TokenTree:
    """Keep the nodes `kept` int32[B, M] of a tree, in this order; -1 makes padding.

    Every kept node's parent must be kept, before it. `logits` and `slots` are kept with
    them.
    """
    rows = jnp.arange(kept.shape[0])[:, None]
    live, at = kept >= 0, jnp.maximum(kept, 0)
    index = jnp.broadcast_to(jnp.arange(kept.shape[1], dtype=jnp.int32), kept.shape)
    size = tree.tokens.shape[1]
    new = jnp.zeros(tree.tokens.shape, jnp.int32)
    new = new.at[rows, jnp.where(live, kept, size)].set(index, mode="drop")
    parents = new[rows, jnp.maximum(tree.parents[rows, at], 0)]
    return replace(
        tree,
        tokens=tree.tokens[rows, at],
        parents=jnp.where(index == 0, -1, jnp.where(live, parents, 0)),
        kind=jnp.where(live, tree.kind[rows, at], base.PAD),
        logits=None if tree.logits is None else tree.logits[rows, at],
        slots=None if tree.slots is None else tree.slots[rows, at],
        linear=False,
    )


def part(
    tree: base.TokenTree, live: Array, width: int
) -> tuple[base.TokenTree, Array | None]:
    """Put the `live` bool[B, N] nodes of a tree into a block of `width` nodes.

    The other nodes, and places that no node takes, are padding. A live node's parent
    is live.

    Returns:
        The narrow tree, and its nodes' places int32[B, width] in the whole one (-1:
        padding); None where every place is its own.
    """
    size, depth = tree.tokens.shape[1], min(tree.depth, width - 1)
    if width == size:
        kind = jnp.where(live, tree.kind, base.PAD)
        return replace(tree, kind=kind), None
    if tree.linear or width == 1:  # a chain's live nodes are its first
        kept = jnp.arange(width, dtype=jnp.int32)
        cut = jax.tree.map(lambda x: x[:, :width] if jnp.ndim(x) > 1 else x, tree)
        kind = jnp.where(live[:, :width], cut.kind, base.PAD)
        cut = replace(cut, kind=kind, depth=depth, linear=True)
        return cut, jnp.broadcast_to(kept, kind.shape)
    order = jnp.argsort(~live, axis=1, stable=True).astype(jnp.int32)[:, :width]
    kept = jnp.where(jnp.take_along_axis(live, order, 1), order, -1)
    return replace(select(tree, kept), depth=depth), kept


def lifted(outcome: base.Outcome, whole: base.TokenTree, kept: Array) -> base.Outcome:
    """Return a round on a `part` of a tree as a round on the `whole` tree.

    Nodes that were left out are padding; their logits and states are zeros.

    Args:
        outcome: of the narrow tree.
        whole: the tree before `part`.
        kept: int32[B, width], from `part`.
    """
    size, narrow = whole.tokens.shape[1], outcome.verdict
    at = jnp.where(kept < 0, size, kept)

    def spread(x: Array) -> Array:
        put = lambda x, at: (
            jnp.zeros((size, *x.shape[1:]), x.dtype)
            .at[at]
            .set(x, mode="drop", unique_indices=True)
        )
        return jax.vmap(put)(x, at)

    path = jnp.take_along_axis(kept, narrow.path, 1)
    path = jnp.where(jnp.arange(path.shape[1]) < narrow.count[:, None], path, 0)
    path = jnp.pad(path, ((0, 0), (0, whole.depth - path.shape[1])))
    kind = spread(outcome.tree.kind)
    target, warped = jax.tree.map(spread, (outcome.target, outcome.warped))
    return replace(
        outcome,
        tree=replace(whole, kind=kind, calls=outcome.tree.calls),
        verdict=replace(narrow, path=path),
        target=target,
        warped=warped,
    )


def paused(like: base.TokenTree, root: Array) -> base.TokenTree:
    """Return a tree of `root` int32[B] alone, with the shapes of the tree `like`."""
    nodes = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), like)
    slots = None if nodes.slots is None else jnp.full_like(nodes.slots, -1)
    return replace(
        nodes,
        tokens=nodes.tokens.at[:, 0].set(root),
        parents=nodes.parents.at[:, 0].set(-1),
        kind=nodes.kind.at[:, 0].set(base.CANDIDATE),
        slots=slots,
    )


def _climb(tree: base.TokenTree) -> tuple[Array, Array]:
    """Return ancestor bits uint32[B, N, W] and depths int32[B, N].

    Pointer doubling takes log2(depth) steps.
    """
    batch, nodes = tree.tokens.shape
    bits = jnp.broadcast_to(
        pack_bits(jnp.eye(nodes, dtype=bool)), (batch, nodes, -(-nodes // 32))
    )
    at, depth = tree.parents, (tree.parents >= 0).astype(jnp.int32)
    reach = 1
    while reach <= tree.depth:
        up = jnp.maximum(at, 0)
        live = at >= 0
        bits = bits | jnp.where(
            live[..., None], jnp.take_along_axis(bits, up[..., None], 1), 0
        )
        depth = depth + jnp.where(live, jnp.take_along_axis(depth, up, 1), 0)
        at = jnp.where(live, jnp.take_along_axis(at, up, 1), -1)
        reach *= 2
    return bits, depth


def ancestors(tree: base.TokenTree) -> Array:
    """Return packed ancestor-or-self bits, uint32[B, N, W]."""
    return _climb(tree)[0]


def depths(tree: base.TokenTree) -> Array:
    """Return the depth of every node, int32[B, N]."""
    return _climb(tree)[1]


def visibility(tree: base.TokenTree, prefix: Array) -> Visibility:
    """Let every node see its ancestors and the first `prefix` int32[B] slots."""
    return Visibility(prefix, ancestors(tree))


def node_states(
    transform: base.LogitsTransform,
    state: base.State,
    tree: base.TokenTree,
    logits: Array,
    aux: dict[str, Array],
) -> base.State:
    """Return the transform's state at every node: `row` leaves become `[B, N, ...]`.

    The state at a node is its parent's, advanced level by level.

    Args:
        transform: the transform in force.
        state: its state at the root.
        tree: the nodes; each advances its parent's state by its own token.
        logits: float32[B, N, V], those that `apply` receives at each node. `advance`
            gets the parent's.
        aux: stream name -> logits float32[B, N, V], used likewise.
    """
    batch, nodes = tree.tokens.shape

    def spread(x: Array) -> Array:
        return jnp.broadcast_to(x[:, None], (batch, nodes, *x.shape[1:]))

    states = base.State(jax.tree.map(spread, state.row), state.shared)
    if transform.advance is None or nodes == 1:
        return states
    level = depths(tree)
    up = jnp.maximum(tree.parents, 0)
    before = jax.tree.map(lambda x: pick(x, up), (logits, aux))
    advance = over_nodes(transform.advance, 3)

    def body(carry: tuple) -> tuple:
        d, states = carry
        above = jax.tree.map(lambda x: pick(x, up), states.row)
        parent = base.State(above, state.shared)
        moved = advance(parent, tree.tokens, *before)

        def here(new: Array, old: Array) -> Array:
            at = (level == d).reshape(batch, nodes, *[1] * (new.ndim - 2))
            return jnp.where(at, new, old)

        return d + 1, base.State(
            jax.tree.map(here, moved.row, states.row), state.shared
        )

    last = level.max()
    return lax.while_loop(lambda c: c[0] <= last, body, (jnp.int32(1), states))[1]


def pick(x: Array, index: Array) -> Array:
    """Gather `x[b, index[b]]` of every row: x [B, N, ...], index int32[B] or [B, M].

    vmap keeps rows on their device. With `x[rows, index]` the compiler must assume that
    a row's entries lie on another device, and gathers them.
    """
    return jax.vmap(lambda x, i: x[i])(x, index)


def over_rows(function: Callable, arguments: int) -> Callable:
    """Vmap a ★ function of a State and `arguments` further arguments over rows."""
    return jax.vmap(function, in_axes=(base.ROWS, *[0] * arguments), out_axes=base.ROWS)


def over_nodes(function: Callable, arguments: int) -> Callable:
    """Vmap a ★ function of a State and `arguments` further ones over rows and nodes."""
    return over_rows(over_rows(function, arguments), arguments)


def masked(rows: Array, new: base.State, old: base.State) -> base.State:
    """Select the state `new` in `rows` bool[B] and `old` in the others."""

    def pick(a: Array, b: Array) -> Array:
        return jnp.where(rows.reshape(-1, *[1] * (a.ndim - 1)), a, b)

    return base.State(jax.tree.map(pick, new.row, old.row), new.shared)


def walk(tree: base.TokenTree, pick: Callable[[Array, Array], Array]) -> base.Verdict:
    """★ Descend while a child has the token that `pick(node, depth)` returns.

    The verdict's extra token is the first pick that no child has. The walk is exact for
    any tree if `pick(node, ...)` follows the target's law at that node and is
    independent of the tree.
    """

    def body(carry: tuple) -> tuple:
        path, count, node, _, _ = carry
        token = pick(node, count).astype(jnp.int32)
        match = (
            (tree.parents == node)
            & (tree.tokens == token)
            & (tree.kind == base.CANDIDATE)
        )
        child = jnp.argmax(match).astype(jnp.int32)
        hit = match.any()
        path = jnp.where(hit, path.at[count].set(child, mode="drop"), path)
        return path, count + hit, jnp.where(hit, child, node), token, hit

    zero = jnp.int32(0)
    if tree.depth == 0:
        token = pick(zero, zero).astype(jnp.int32)
        return base.Verdict(jnp.zeros((0,), jnp.int32), zero, token)
    start = (jnp.zeros((tree.depth,), jnp.int32), zero, zero, zero, jnp.bool_(True))
    path, count, _, token, _ = lax.while_loop(lambda c: c[4], body, start)
    return base.Verdict(path, count, token)


def lineage(tree: base.TokenTree, node: Array) -> tuple[Array, Array]:
    """★ Return the path int32[D] from the root to `node` int32[], and its length.

    The path begins with the root's child and ends with `node`.
    """
    climb = [node]
    for _ in range(tree.depth):
        climb.append(jnp.maximum(tree.parents[climb[-1]], 0))
    up = jnp.stack(climb)  # node, its parent, ..., then 0 from the root on
    count = (up > 0).sum().astype(jnp.int32)
    index = jnp.arange(tree.depth, dtype=jnp.int32)
    path = up[jnp.maximum(count - 1 - index, 0)]
    return jnp.where(index < count, path, 0), count


def drafted(verdict: base.Verdict) -> Array:
    """Count a round's tokens that are drafts, int32[B]."""
    if verdict.drafted is None:
        return verdict.count
    return verdict.count + verdict.drafted


def chosen(verdict: base.Verdict) -> Array:
    """Return whether the extra token is the target's own, bool[B]."""
    if verdict.drafted is None:
        return jnp.ones(verdict.count.shape, bool)
    return ~verdict.drafted


def last_node(verdict: base.Verdict) -> Array:
    """Return the node that the extra token follows, int32[B]; 0 if none is accepted."""
    if verdict.path.shape[1] == 0:
        return jnp.zeros_like(verdict.count)
    at = jnp.maximum(verdict.count - 1, 0)[:, None]
    node = jnp.take_along_axis(verdict.path, at, 1)[:, 0]
    return jnp.where(verdict.count > 0, node, 0)


def committed(tree: base.TokenTree, verdict: base.Verdict) -> tuple[Array, Array]:
    """Return a round's tokens int32[B, D + 1] and their number int32[B].

    The accepted drafts come first, then the extra token.
    """
    accepted = jnp.take_along_axis(tree.tokens, verdict.path, 1)
    index = jnp.arange(accepted.shape[1] + 1, dtype=jnp.int32)
    padded = jnp.pad(accepted, ((0, 0), (0, 1)))
    tokens = jnp.where(index == verdict.count[:, None], verdict.token[:, None], padded)
    return tokens, verdict.count + 1


def ranks(tree: base.TokenTree, path: Array, count: Array, size: int) -> Array:
    """Count the nodes of `path[:count]` by their rank among siblings, int32[B, size].

    Rank 0 was drawn first; ranks of `size - 1` and more are pooled.

    Args:
        tree: the drafted tree.
        path: int32[B, D], node indices.
        count: int32[B], accepted nodes of the path.
        size: number of ranks.
    """
    parent = jnp.take_along_axis(tree.parents, path, 1)
    index = jnp.arange(tree.parents.shape[1], dtype=jnp.int32)
    older = (
        (tree.parents[:, None] == parent[..., None])
        & (index < path[..., None])
        & (tree.kind == base.CANDIDATE)[:, None]
    )
    rank = jnp.minimum(older.sum(-1), size - 1)
    taken = jnp.arange(path.shape[1]) < count[:, None]
    each = (rank[..., None] == jnp.arange(size)) & taken[..., None]
    return each.sum(1, dtype=jnp.int32)
