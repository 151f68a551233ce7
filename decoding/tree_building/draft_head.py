"""Drafters with heads: they read each round and grow the next tree from it.

`drafter` makes a drafter from three functions of a head: its state of an empty text,
its state after a round, and the start of the next tree. `layered` makes one from a head
that continues the target's states with one layer.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import struct
from jax import Array

from decoding import base, tree
from decoding.tree_building import grow, tables
from models.base import Block, LanguageModel, causal_block
from models.errors import MethodError
from models.heads.modules import decoder_layer

Call = Callable[[Any, Any, Block, int], tuple[Array, Any, Any]]


@struct.dataclass
class Row:
    """One row's state of a drafter with heads."""

    own: Any  # the head's state of the text
    cache: Any  # of the head's layers; () without any
    grown: Any  # the topology's row state


class Start(NamedTuple):
    """The start of a tree: arguments of `grow.sprout`."""

    call: Call
    logits: Array  # [B, V]: the root's, raw
    own: Any = ()  # the root's values for its children
    prefix: Array | None = None  # int32[B]; None: `call` reads no slots
    part: grow.Part | None = None  # the tokens of the logits; None: all
    cache: Any = None  # that `start` wrote to; None: it did not
    table: Callable[[Array], tables.Table] | None = None  # keys -> all depths' steps
    watched: Callable[[Any], Any] = lambda own: own  # what a topology watches of `own`
    late: Array | int = 0  # runs before this one, for texts that were not read yet
    known: bool = False  # all laws are known: levels of the tree run nothing


def drafter(
    topology: base.Topology,
    init: Callable[[base.Context], tuple[Any, Any]],
    start: Callable[[base.Context, Any, Any], Start],
    read: Callable[[base.Context, Any, Any, base.Outcome], tuple[Any, Any]],
    taps: tuple,
    calls: int = 0,
) -> base.Drafter:
    """Return the drafter of a head that grows `topology`.

    Args:
        topology: of the trees.
        init: `init(ctx) -> own, cache`, for an empty text.
        start: `start(ctx, own, cache)`. The tree's calls may write to the cache past
            its committed part.
        read: `read(ctx, own, cache, outcome) -> own, cache`, after a round, a pause or
            a chunk of the prompt.
        taps: states of the target that `read` needs.
        calls: runs of the head a round beside those of the tree's levels, if these run
            it.
    """

    def begin(ctx: base.Context) -> base.State:
        grown = topology.init(ctx.tokens.shape[0])
        return base.State(Row(*init(ctx), grown.row), grown.shared)

    def draft(keys, ctx: base.Context, state: base.State):
        row = state.row
        first = start(ctx, row.own, row.cache)
        written = row.cache if first.cache is None else first.cache
        if topology.tabled is not None and first.table is not None:
            nodes = tables.grown(ctx, topology, first.table(keys))
            row = Row(row.own, written, row.grown)
            nodes = replace(nodes, calls=calls + first.late)
            return nodes, base.State(row, state.shared), ctx.cache
        nodes, grown, cache = grow.sprout(
            first.call,
            written,
            ctx.length - 1 if first.prefix is None else first.prefix,
            ctx,
            topology,
            keys,
            base.State(row.grown, state.shared),
            first.logits,
            first.own,
            first.part,
            first.watched,
        )
        levels = jnp.minimum(nodes.calls, 0) if first.known else nodes.calls
        ran = jnp.maximum(levels + calls, 0)  # -1 levels: the tree was not begun
        nodes = replace(nodes, calls=ran + first.late)
        row = Row(row.own, cache, grown.row)
        return nodes, base.State(row, grown.shared), ctx.cache

    def observe(ctx: base.Context, state: base.State, outcome: base.Outcome):
        row = state.row
        grown = base.State(row.grown, state.shared)
        if outcome.is_round:
            grown = topology.adapt(grown, outcome)
        head_state, cache = read(ctx, row.own, row.cache, outcome)
        return base.State(Row(head_state, cache, grown.row), grown.shared)

    return base.Drafter(
        begin,
        draft,
        observe,
        topology.nodes,
        topology.depth,
        taps=tuple(dict.fromkeys(taps)),
        blocks=topology.blocks,
        pauses=True,
    )


def layered(
    model: LanguageModel,
    topology: base.Topology,
    layer: Any,
    width: int,
    block: Callable[[Any, Any, Array, Array, Block], tuple[Array, Any]],
    laws: Callable[[Any, Array], Array],
    features: Callable[[Any, base.Outcome], Array],
    handed: Callable[[Array], Array] = lambda output: output,
    taps: tuple = ("norm",),
    part: Callable[[Any], grow.Part | None] = lambda params: None,
) -> base.Drafter:
    """Return the drafter of a one-layer head over pairs (token, the state before it).

    EAGLE and its kin. The head's state is the output at the root. After a round the
    layer's cache holds the pair of every committed token but the first, made from the
    target's states. The functions' `params` are those of `generate`.

    Args:
        model: the target.
        topology: of the trees.
        layer: the layer's params.
        width: of the layer's output.
        block: `block(params, cache, embedded, feature, nodes) -> output, cache`, with
            output [B, N, width].
        laws: `laws(params, output)`, the logits of an output.
        features: `features(params, outcome)` [B, D + 1, ..], the states before the
            committed tokens.
        handed: `handed(output)` of its parent is the state before a draft.
        taps: states of the target that `features` needs.
        part: `part(params)`, the tokens that the logits are of; None: all.
    """

    def init(ctx: base.Context) -> tuple:
        batch, size = ctx.tokens.shape
        cache = decoder_layer.cache(layer, batch, size + sum(topology.run))
        return jnp.zeros((batch, width), layer["qkv"].dtype), cache

    def start(ctx: base.Context, output: Array, cache: Any) -> Start:
        def call(cache, above, nodes, level: int):
            embedded = model.embed(ctx.params["target"], nodes.tokens, nodes.positions)
            nodes = replace(nodes, positions=nodes.positions - 1)
            drafted, cache = block(ctx.params, cache, embedded, handed(above), nodes)
            return laws(ctx.params, drafted), drafted, cache

        root = output[:, None]
        # The root's pair is the last that is committed.
        logits = laws(ctx.params, root)[:, 0]
        return Start(call, logits, root, cache.length - 1, part(ctx.params))

    def read(ctx: base.Context, output: Array, cache: Any, outcome: base.Outcome):
        nodes, embedded = read_pairs(model, ctx, cache, outcome)
        hidden = features(ctx.params, outcome)
        outputs, after = block(ctx.params, cache, embedded, hidden, nodes)
        return settle(outcome, outputs, output, after)

    return drafter(topology, init, start, read, taps, calls=1)


def by_level(laws: Array) -> Call:
    """Return the `call` of heads whose laws [B, K, V] depend on the level alone.

    The first law is the root's.
    """

    def call(cache, above, block, level: int):
        shape = (*block.tokens.shape, laws.shape[-1])
        return jnp.broadcast_to(laws[:, level, None], shape), (), cache

    return call


def marginal(
    ctx: base.Context,
    topology: base.Topology,
    laws: Array,
    cache: Any = None,
    late: Array | int = 0,
) -> Start:
    """Return the start of a tree of laws [B, K, V] that depend on the level alone.

    The first law is the root's. A tree of a table has them too. `cache` and `late` are
    the fields of `Start`.
    """

    def table(keys: Array) -> tables.Table:
        depth, ways = topology.depth, topology.tabled
        above = jnp.broadcast_to(ctx.root[:, None, None], (len(laws), depth, 1))
        raw = laws[:, :depth, None]
        return tables.table(ctx, keys, above, raw, ways.children, topology.draw, True)

    call = by_level(laws)
    return Start(call, laws[:, 0], cache=cache, table=table, late=late, known=True)


def check_depth(name: str, topology: base.Topology, heads: int) -> None:
    """Refuse a tree that has more levels than there are heads."""
    if topology.depth > heads:
        raise MethodError(
            f"the tree is {topology.depth} levels deep and there are {heads} {name} "
            f"heads: use a tree of at most {heads} levels, or train more heads"
        )


def states(outcome: base.Outcome, tap: Any) -> Array:
    """Gather the target's states [B, D + 1, width] at the root and the accepted path.

    The `j`th committed token was chosen from the `j`th state.
    """
    path = outcome.verdict.path
    nodes = jnp.concatenate([jnp.zeros((path.shape[0], 1), path.dtype), path], 1)
    hidden = outcome.target.hidden[tap]
    return jnp.take_along_axis(hidden, nodes[..., None], 1)


def last_state(outcome: base.Outcome, tap: Any, old: Array) -> Array:
    """Gather the state [B, width] from which the extra token was chosen.

    Rows that commit nothing keep `old`.
    """
    node = tree.last_node(outcome.verdict)[:, None, None]
    state = jnp.take_along_axis(outcome.target.hidden[tap], node, 1)[:, 0]
    moved = outcome.active & (outcome.verdict.count >= 0)
    return jnp.where(moved[:, None], state.astype(old.dtype), old)


def pairs(outcome: base.Outcome, cache: Any) -> Block:
    """Return a round's committed tokens as a causal block for a head's layer.

    Its `j`th node is the `j`th token, at the position of the state that chose it. The
    cache holds one such pair for every committed token but the first.
    """
    tokens, count = tree.committed(outcome.tree, outcome.verdict)
    count = jnp.where(outcome.active, count, 0)
    return causal_block(tokens, cache.length, count, cache.size)


def read_pairs(
    model: LanguageModel, ctx: base.Context, cache: Any, outcome: base.Outcome
) -> tuple[Block, Array]:
    """Return `pairs`, and the target's embeddings [B, D + 1, width] of their tokens."""
    block = pairs(outcome, cache)
    params = ctx.params["target"]
    return block, model.embed(params, block.tokens, block.positions + 1)


def settle(outcome: base.Outcome, found: Array, old: Array, cache: Any) -> tuple:
    """Commit the round's `pairs`; return the last pair's output, and the cache.

    `found` [B, D + 1, width] are the outputs at the pairs, `old` [B, width] the last
    output of the round before.
    """
    count = jnp.where(outcome.active, outcome.verdict.count, -1)
    at = jnp.maximum(count, 0)[:, None, None]
    last = jnp.take_along_axis(found, at, 1)[:, 0].astype(old.dtype)
    return jnp.where((count >= 0)[:, None], last, old), committed(outcome, cache)


def committed(outcome: base.Outcome, cache: Any) -> Any:
    """Commit the keys of the round's `pairs`, which `cache` holds past its length."""
    count = jnp.where(outcome.active, outcome.verdict.count, -1)
    none = jnp.zeros((count.shape[0], 0), jnp.int32)
    return cache.commit(none, count, linear=True)
