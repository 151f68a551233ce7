"""The block of a search's round: the lanes' nodes, and drafts that hang below them.

Drafts change which nodes run, never what is chosen. They come from a drafter that reads
texts, for which the lanes are rows, or from a draft model, which runs on the same nodes
in the same slots (`hypotheses.drafts.Lanes`).
"""

import functools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from decoding import base, noise, tree, vocab
from decoding.hypotheses import slots as scratch
from decoding.hypotheses.drafts import Block, Lanes, Texts, Trail
from decoding.hypotheses.nodes import ALL as ALL_NODES
from decoding.loops.decode import TARGET, Program
from decoding.loops.search_state import SearchState, selects
from models import base as model_base
from models.base import ALL, NONE, Hidden, ModelOutput, Visibility

DRAFT = "draft"  # the stream of a draft model


def size(program: Program, lanes: int) -> tuple[int, int]:
    """Return the nodes of a round's block, and the levels that it may serve."""
    if (model := program.lanes) is not None:
        return lanes + model.count(lanes) * model.depth, model.depth + 1
    if (drafter := program.texts) is not None:
        return lanes * drafter.nodes, drafter.depth + 1
    return lanes, 1


def up(state: SearchState) -> tuple[Array, Array]:
    """Return the ancestors' bits of the lanes' nodes uint32[B, K, W], and who lives."""
    live = (state.lanes >= 0) & ~state.rows.done[:, None]
    nodes = state.nodes

    def one(lanes: Array, parents: Array, slot: Array, bits: Array) -> Array:
        parent = parents[jnp.maximum(lanes, 0)]
        return scratch.above(bits, jnp.where(parent >= 0, slot[parent], -1))

    above = jax.vmap(one)(state.lanes, nodes.parents, nodes.slot, state.slots.bits)
    return above, live


def taken(program: Program, bits: Array, seen: Array, live: Array) -> Array:
    """Return the slots that are not free, bool[B, S], by all bits or those `seen`."""
    if selects(program).holds == ALL_NODES:
        return scratch.written(bits)
    return jax.vmap(scratch.held)(seen, live)


def block(
    program: Program, params: base.Params, state: SearchState
) -> tuple[Block, Array, SearchState, base.TokenTree | None]:
    """Make a round's block.

    Returns:
        The block, the slots' new bits, the state with what drafting changed, and the
        drafter's tree of every lane, rows [B K]; None without one.
    """
    above, live = up(state)
    used = taken(program, state.slots.bits, above, live)
    nodes, lanes = state.nodes, jnp.maximum(state.lanes, 0)
    tokens = jnp.take_along_axis(nodes.tokens, lanes, 1)
    depth = jnp.take_along_axis(nodes.depth, lanes, 1)
    first = (tokens, depth, live)
    place = functools.partial(_placed, state, above, used)
    none = jnp.zeros((len(live), 0), jnp.int32)
    if program.lanes is not None:
        return *_of_model(program.lanes, params, state, place, first), None
    if program.texts is None:
        return *place(first, none, 0), state, None
    trees, state = _of_texts(program.texts, program, params, state)
    below, parents = _below(trees, depth)
    every = _joined(first, below)
    run, bits = place(_within(state, every, parents), parents, program.texts.depth)
    return run, bits, state, trees


def _placed(state, above, used, nodes, parents, most):
    """Place nodes (tokens, depths, presence); return the block and the slots' bits."""
    tokens, depth, there = nodes
    place = functools.partial(scratch.placed, depth=most)
    places = (state.slots.bits, above, there, used, parents)
    slot, seen, bits = jax.vmap(place)(*places)
    return Block(tokens, depth, there, parents, slot, seen, most), bits


def _joined(nodes: tuple, more: tuple) -> tuple:
    """Put nodes (tokens, depths, presence) behind others."""
    return tuple(jnp.concatenate([a, b], 1) for a, b in zip(nodes, more))


def _within(state, nodes, parents):
    """Leave drafts out whose text would be longer than its limit, and those below."""
    tokens, depth, there = nodes
    rows = state.rows
    lanes = there.shape[1] - parents.shape[1]
    runs = depth < (rows.limit - rows.length)[:, None]
    drafted = jnp.arange(there.shape[1]) >= lanes
    return tokens, depth, there & (runs | ~drafted)


def of_cache(
    state: SearchState, run: Block, name: str, begin: int = 0
) -> model_base.Block:
    """Make the nodes from `begin` on the block of one cache.

    A stream's own prompt has its own last token.
    """
    cache = state.rows.caches[name]
    tokens, lanes = run.tokens, state.lanes.shape[1]
    if name != TARGET:
        root = jnp.pad(
            state.lanes, ((0, 0), (0, tokens.shape[1] - lanes)), constant_values=-1
        )
        tokens = jnp.where(root == 0, state.rows.roots[name][:, None], tokens)
    index = jnp.arange(tokens.shape[1], dtype=jnp.int32)
    at = jnp.where(run.there, cache.length[:, None] + run.slot, cache.size + index)
    positions = state.starts[name][:, None] + run.depth
    tokens, positions, at, seen = (
        x[:, begin:] for x in (tokens, positions, at, run.seen)
    )
    sight = Visibility(cache.length, seen)
    return model_base.Block(tokens, positions, at, sight, logits_at=ALL)


def _of_model(drafts: Lanes, params, state, place, nodes):
    """Draft level by level with a model, which then has run every node."""
    lanes = state.lanes.shape[1]
    most = drafts.count(lanes)
    weights = base.read(params, DRAFT)
    caches = state.rows.caches
    parents = jnp.zeros((len(state.lanes), 0), jnp.int32)
    given = jnp.take_along_axis(state.nodes.total, jnp.maximum(state.lanes, 0), 1)
    sums = jnp.where(nodes[2], given, -jnp.inf)
    begin = 0
    for level in range(drafts.depth + 1):
        run, bits = place(nodes, parents, level)
        part = of_cache(state, run, DRAFT, begin)
        last = level == drafts.depth
        part = replace(part, logits_at=NONE if last else ALL)
        out, cache = drafts.model(weights, caches[DRAFT], part)
        caches = {**caches, DRAFT: cache}
        state = replace(state, rows=replace(state.rows, caches=caches))
        if last:
            break
        logp = vocab.log_softmax(out.logits)
        grow = jax.vmap(lambda s, logp: drafts.expand(s, logp, most))
        parent, token, sums = grow(sums, logp)
        parent += begin
        deeper = jnp.take_along_axis(nodes[1], parent, 1) + 1
        begin = nodes[0].shape[1]
        parents = jnp.concatenate([parents, parent], 1)
        new = (token, deeper, sums > -jnp.inf)
        nodes = _within(state, _joined(nodes, new), parents)
        sums = jnp.where(nodes[2][:, begin:], sums, -jnp.inf)
    calls = jnp.where(state.rows.done, 0, drafts.depth + 1)
    counters = state.rows.counters
    counters = replace(counters, draft_calls=counters.draft_calls + calls)
    return run, bits, replace(state, rows=replace(state.rows, counters=counters))


def _flat(x: Any) -> Any:
    """Merge the first two dimensions of all leaves."""
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), x)


def _context(program, params, state):
    """Make the context of the lanes as rows [B K]."""
    rows, texts = state.rows, state.texts
    _, live = up(state)
    lanes = live.shape[1]
    row = jnp.repeat(jnp.arange(len(live)), lanes)
    key, sampled = rows.key[row], rows.sampled[row]

    def noise_at(position: Array, ids: Array | None = None) -> Array:
        draw = functools.partial(noise.at_position, size=program.vocab, ids=ids)
        return jnp.where(sampled[:, None], jax.vmap(draw)(key, position), 0.0)

    return base.Context(
        params,
        _flat(texts.tokens),
        _flat(texts.length),
        None,
        program.transform,
        base.State(_flat(state.states.row), state.states.shared),
        noise_at,
        _flat(live),
    )


def _of_texts(drafter: base.Drafter, program, params, state):
    """Draft for every lane from its text; return trees, rows [B K], and the state."""
    texts = state.texts
    ctx = _context(program, params, state)
    row = jnp.repeat(jnp.arange(len(state.lanes)), state.lanes.shape[1])
    keys = noise.for_role(state.rows.key[row], noise.DRAFT, ctx.length)
    own = base.State(_flat(texts.own.row), texts.own.shared)
    trees, own, _ = drafter.draft(keys, ctx, own)
    return trees, replace(state, texts=replace(texts, own=_by_lane(own, state)))


def _by_lane(own: base.State, state) -> base.State:
    shape = state.lanes.shape
    row = jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), own.row)
    return base.State(row, own.shared)


def _below(trees: base.TokenTree, depth: Array):
    """Hang every tree's drafts below its lane, of `depth` int32[B, K].

    Returns:
        The drafts' tokens, depths and presence, [B, K (n - 1)] with trees of n nodes,
        and their parents in the block.
    """
    batch, lanes = depth.shape
    fold = lambda x: x[:, 1:].reshape(batch, -1)
    size = trees.tokens.shape[1] - 1
    own = jnp.arange(batch * lanes, dtype=jnp.int32)[:, None] % lanes
    first = lanes + own * size - 1  # where node 0 would be
    parents = jnp.where(trees.parents > 0, first + trees.parents, own)
    under = jnp.repeat(depth, size, 1) + fold(tree.depths(trees))
    there = fold((trees.kind == base.CANDIDATE) & (trees.parents[:, :1] < 0))
    return (fold(trees.tokens), under, there), fold(parents)


def trail(state: SearchState, most: int) -> Trail:
    """Begin a round's trail, of at most `most` drafts a lane."""
    shape = state.lanes.shape
    lane = jnp.broadcast_to(jnp.arange(shape[1], dtype=jnp.int32), shape)
    path = jnp.zeros((*shape, most), jnp.int32)
    return Trail(lane, path, jnp.zeros_like(lane), jnp.zeros_like(lane))


def followed(
    trail: Trail, drafts: int, at: Array, came: Array, moved: Array, token: Array
) -> Trail:
    """Follow the lanes through a level.

    Args:
        trail: up to this level.
        drafts: a lane's.
        at: int32[B, K], the nodes of the block at which lanes were.
        came: int32[B, K], the lane that each comes from.
        moved: bool[B, K], whether by a new token.
        token: int32[B, K], that token.
    """
    before = jax.tree.map(lambda x: tree.pick(x, came), trail)
    lanes, deep = at.shape[1], trail.path.shape[2]
    node = tree.pick(at, came)
    inside = jnp.where(node < lanes, 0, (node - lanes) % max(drafts, 1) + 1)
    enters = moved & (before.moves > 0)
    here = (jnp.arange(deep) == before.moves[..., None] - 1) & enters[..., None]
    return Trail(
        before.lane,
        jnp.where(here, inside[..., None], before.path),
        before.moves + moved,
        jnp.where(moved, token, before.last),
    )


def told(
    program: Program,
    params: base.Params,
    state: SearchState,
    trees: base.TokenTree,
    trail: Trail,
    logits: Any,
) -> SearchState:
    """Write the lanes' texts on, and tell the drafter what became of its drafts.

    Args:
        program: of a search with a drafter that reads texts.
        params: all params, by name.
        state: after the round.
        trees: the drafter's, rows [B K].
        trail: of the lanes.
        logits: float32[B, N, V], the target's at the block's nodes.
    """
    drafter, texts = program.texts, state.texts
    assert drafter is not None and texts is not None
    batch, lanes = state.lanes.shape
    size = trees.tokens.shape[1]
    came = lambda x: _flat(tree.pick(x, trail.lane))
    unfold = lambda x: x.reshape(batch, lanes, *x.shape[1:])
    nodes = jax.tree.map(lambda x: came(unfold(x)), _whole(trees))
    index = lanes + jnp.arange(lanes)[:, None] * (size - 1) + jnp.arange(size - 1)
    index = jnp.concatenate([jnp.arange(lanes)[:, None], index], 1)  # [K, n]
    raw = came(logits[:, index])
    moves = _flat(trail.moves)
    active = (moves > 0) & _flat((state.lanes >= 0) & ~state.rows.done[:, None])
    count = jnp.where(active, moves - 1, -1)
    verdict = base.Verdict(_flat(trail.path), count, _flat(trail.last))
    tokens, new = tree.committed(nodes, verdict)
    old = (texts.tokens, texts.length, texts.own.row)
    text, length, row = jax.tree.map(came, old)

    def written(text: Array, length: Array, tokens: Array, count: Array) -> Array:
        index = jnp.arange(tokens.shape[0])
        at = jnp.where(index < count, length + index, text.shape[0])
        return text.at[at].set(tokens, mode="drop")

    new = jnp.where(active, new, 0)
    text, length = jax.vmap(written)(text, length, tokens, new), length + new
    after = Texts(unfold(text), unfold(length), texts.own)
    ctx = _context(program, params, replace(state, texts=after))
    out = ModelOutput(logits=raw, hidden=Hidden())
    outcome = base.Outcome(nodes, verdict, out, None, active)
    own = drafter.observe(ctx, base.State(row, texts.own.shared), outcome)
    return replace(state, texts=replace(after, own=_by_lane(own, state)))


def _whole(trees: base.TokenTree) -> base.TokenTree:
    """Give every number of a tree its rows."""
    calls = jnp.broadcast_to(jnp.asarray(trees.calls, jnp.int32), len(trees.tokens))
    return replace(trees, calls=calls, logits=None, slots=None)
