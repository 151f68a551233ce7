"""The forward of a denoise step: what the policy runs, for one state a row or several.

Slots are positions. The first state of a row is run in place. Others, *branches*, lie
side by side behind the slots that it sees, and read in place what they do not run.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from decoding.denoising.canvas_policy import (
    BIDIRECTIONAL,
    CanvasPolicy,
    beginning,
)
from decoding.denoising.schedule import Canvas
from decoding.loops import block_choice
from models.base import NONE, Block, LanguageModel, Visibility, pack_bits


class Laws(NamedTuple):
    """What a forward gives."""

    logits: Array  # float32[B, K, C, V]: of the positions lo + arange(C) of each state
    nodes: Array  # int32[B]: that ran
    wide: Array  # bool[]: the widest program ran


class Plan(NamedTuple):
    """What runs of the K states of all rows."""

    canvas: Canvas  # leaves [B, K, ...]
    run: Array  # bool[B, K, T]
    source: Array  # int32[B, K, C]: the position that gives each law


class Nodes(NamedTuple):
    """The positions that run of one state of each row, in rising order."""

    positions: Array  # int32[B, N]; of a place without a node: 0
    valid: Array  # bool[B, N]
    node_of: Array  # int32[B, T]; N: a position without a node
    tokens: Array  # int32[B, N]
    ends: Array  # int32[B, N]: a node sees what lies before
    own: Array  # bool[B, T]: of a branch: what it does not read in place


def plan(
    policy: CanvasPolicy,
    canvas: Canvas,
    active: Array,
    window: int,
    shifted: bool,
    chosen: Array | None = None,
) -> Plan:
    """Decide what runs of the states [B, K], those that are `active` bool[B, K].

    Args:
        policy: what runs.
        canvas: leaves [B, K, ...].
        active: of the other states nothing runs.
        window: C.
        shifted: whether a position's law is at the position before it.
        chosen: bool[B, K, C], whose laws alone are read inside a block; None: all.
    """

    def one(canvas: Canvas, active: Array, chosen: Array | None) -> tuple[Array, Array]:
        place = jnp.arange(canvas.tokens.shape[0], dtype=jnp.int32)
        source = canvas.lo + jnp.arange(window, dtype=jnp.int32)
        last = jnp.where(beginning(canvas), canvas.lo + window, canvas.hi)
        if size := policy.block:
            last = jnp.minimum(last, (canvas.lo // size + 1) * size)
        wanted = canvas.open & (place >= canvas.lo) & (place < last)
        if chosen is not None:
            soon = jnp.zeros_like(wanted).at[source].set(chosen, mode="drop")
            wanted &= soon | beginning(canvas)
        reads = wanted
        if shifted:
            # The first one's law is before the block. A policy of blocks runs it to the
            # block's end, as the others, so that kept keys are of the state alone.
            whole = policy.steady and not policy.block
            first = whole & (place == canvas.lo) & (canvas.lo > 0)
            reads = jnp.roll(wanted | first, -1)
            source = jnp.maximum(source - 1, 0)
        run = (policy.run(canvas, wanted) | reads) & (place < canvas.limit)
        return run & active, source

    return Plan(canvas, *jax.vmap(jax.vmap(one))(canvas, active, chosen))


def slots(policy: CanvasPolicy, tokens: int, widths: Sequence[int], states: int) -> int:
    """Return the slots of a cache for rows of `tokens` positions and K `states`."""
    if states == 1:
        return tokens
    return tokens + _span(policy, widths[-1]) + (states - 1) * widths[0]


def forward(
    model: LanguageModel,
    policy: CanvasPolicy,
    weights: Any,
    cache: Any,
    todo: Plan,
    widths: Sequence[int],
) -> tuple[Any, Laws]:
    """Run a plan in the narrowest program that holds the first states of all rows.

    Args:
        model: the model.
        policy: what nodes see.
        weights: the model's params.
        cache: see `slots`.
        todo: what runs.
        widths: nodes of a first state, in rising order; a branch has the first.

    Returns:
        The cache, and the laws.
    """
    states, mask = todo.run.shape[1], model.config.mask_token
    count = todo.run.sum(2, dtype=jnp.int32)

    def at(width: int) -> Any:
        def call(cache: Any) -> tuple[Any, Array]:
            every = [
                _nodes(policy, todo, k, widths[0] if k else width, mask)
                for k in range(states)
            ]
            block = _block(policy, every, cache.size)
            out, cache = model(weights, cache, block, ("norm",))
            found, begin = [], 0
            for k, nodes in enumerate(every):
                size = nodes.positions.shape[1]
                hidden = out.hidden["norm"][:, begin : begin + size]
                node = jnp.take_along_axis(nodes.node_of, todo.source[:, k], 1, "clip")
                node = jnp.minimum(node, size - 1)[..., None]
                found.append(jnp.take_along_axis(hidden, node, 1))
                begin += size
            return cache, jnp.stack(found, 1)

        return call

    choice = (count[:, 0].max() > jnp.asarray(widths[:-1], jnp.int32)).sum()
    if len(widths) == 1:
        cache, hidden = at(widths[0])(cache)
    else:
        cache, hidden = block_choice.one_of(choice, [*map(at, widths)], cache)
    logits = model.head(weights, hidden).astype(jnp.float32)
    return cache, Laws(logits, count.sum(1), choice == len(widths) - 1)


def _nodes(
    policy: CanvasPolicy, todo: Plan, k: int, width: int, mask_token: int
) -> Nodes:
    """List the nodes of state `k` of all rows, at most `width`."""

    def one(canvas: Canvas, run: Array) -> Nodes:
        size, block = run.shape[0], policy.block
        place = jnp.arange(size, dtype=jnp.int32)
        order = jnp.cumsum(run, dtype=jnp.int32) - 1
        at = jnp.where(run & (order < width), order, width + place)
        put: dict[str, Any] = {"mode": "drop", "unique_indices": True}
        positions = jnp.zeros(width, jnp.int32).at[at].set(place, **put)
        tokens = jnp.where(canvas.known, canvas.tokens, mask_token)[positions]
        ends = jnp.broadcast_to(canvas.limit, positions.shape)
        first: Any = 0
        if policy.visibility != BIDIRECTIONAL:
            ends = jnp.minimum((positions // block + 1) * block, ends)
            first = canvas.lo // block * block
        valid = jnp.arange(width, dtype=jnp.int32) < run.sum()
        index = jnp.where(run, order, width)
        return Nodes(positions, valid, index, tokens, ends, run & (place >= first))

    canvas, run = jax.tree.map(lambda x: x[:, k], (todo.canvas, todo.run))
    return jax.vmap(one)(canvas, run)


def _span(policy: CanvasPolicy, width: int) -> int:
    """Return the slots behind the prefix that a first state's nodes may see."""
    return 0 if policy.visibility == BIDIRECTIONAL else width + policy.block


def _block(policy: CanvasPolicy, every: list[Nodes], size: int) -> Block:
    """Make the block of all states of all rows, over a cache of `size` slots.

    All nodes see the slots below `prefix` (a branch: but for those of its own nodes).
    Ancestor bits tell what of those behind: of the first state, `span` slots where
    nodes differ by block; of a branch, its own nodes' slots, behind these.
    """
    first, rest = every[0], every[1:]
    prefix = jnp.where(first.valid[:, 0], first.ends[:, 0], 0)
    span = _span(policy, first.positions.shape[1])
    total = span + sum(nodes.positions.shape[1] for nodes in rest)
    index = jnp.arange(max(total, 1), dtype=jnp.int32)
    places, bits, masks, begin = [], [], [], span
    for nodes in every:
        width = nodes.positions.shape[1]
        if nodes is first:
            places.append(nodes.positions)
            behind = prefix[:, None, None] + index
            seen = (index < span) & (behind < nodes.ends[..., None])
            hidden = jnp.zeros((first.own.shape[0], size), bool)
        else:
            of = jnp.arange(width, dtype=jnp.int32)
            places.append(prefix[:, None] + begin + of)
            at = jnp.clip(index - begin, 0, width - 1)
            mine = nodes.valid & jnp.take_along_axis(nodes.own, nodes.positions, 1)
            key = jnp.where(mine, nodes.positions, size)[:, at]
            seen = (index >= begin) & (index < begin + width)
            seen = seen & (key[:, None] < nodes.ends[..., None]) & mine[..., None]
            hidden = jnp.pad(nodes.own, ((0, 0), (0, size - nodes.own.shape[1])))
            begin += width
        bits.append(pack_bits(seen & nodes.valid[..., None]))
        masks.append(jnp.broadcast_to(~hidden[:, None], (*nodes.valid.shape, size)))
    join = lambda parts: jnp.concatenate(parts, 1)
    valid, place = join([nodes.valid for nodes in every]), join(places)
    spare = size + jnp.arange(place.shape[1], dtype=jnp.int32)  # writes nowhere
    return Block(
        join([nodes.tokens for nodes in every]),
        join([nodes.positions for nodes in every]),
        jnp.where(valid, place, spare),
        Visibility(prefix, join(bits), join(masks) if rest else None),
        logits_at=NONE,
    )
