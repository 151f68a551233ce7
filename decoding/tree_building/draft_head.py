"""What drafters with heads of their own share: reading a round, and growing the next.

A head is three functions, of which `drafter` makes a drafter: what it keeps of a text
at first, what it keeps after a round, and what the next tree grows from. Of those that
continue the target's states with one layer, `layered` makes one.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import struct
from jax import Array

from decoding import base, tree
from decoding.tree_building import grow
from models.base import Block, LanguageModel, causal_block
from models.errors import MethodError
from models.heads.modules import decoder_layer

Call = Callable[[Any, Any, Block, int], tuple[Array, Any, Any]]


@struct.dataclass
class Row:
    """One row's state of a drafter with heads."""

    own: Any  # what the head keeps of the text
    cache: Any  # its own layers'; () without any
    grown: Any  # the topology's


class Start(NamedTuple):
    """What a tree grows from: see `grow.sprout`, which is called with it."""

    call: Call
    logits: Array  # float32[B, V]: the root's, raw
    own: Any = ()  # what the root hands to its children
    prefix: Array | None = None  # int32[B]; None: `call` reads no slots


def drafter(
    topology: base.Topology,
    init: Callable[[base.Context], tuple[Any, Any]],
    start: Callable[[base.Context, Any, Any], Start],
    read: Callable[[base.Context, Any, Any, base.Outcome], tuple[Any, Any]],
    taps: tuple,
    calls: int = 0,
) -> base.Drafter:
    """A head that grows `topology`.

    `init(ctx) -> own, cache`; `start(ctx, own, cache)`; `read(ctx, own, cache, outcome)
    -> own, cache` after a round or a chunk of the prompt. The cache passes through the
    calls of the tree, which may write past what it has committed. `calls`: how often
    the head runs a round beside the levels of its tree.
    """

    def begin(ctx: base.Context) -> base.State:
        grown = topology.init(ctx.tokens.shape[0])
        return base.State(Row(*init(ctx), grown.row), grown.shared)

    def draft(keys, ctx: base.Context, state: base.State):
        row = state.row
        first = start(ctx, row.own, row.cache)
        nodes, grown, cache = grow.sprout(
            first.call,
            row.cache,
            ctx.length - 1 if first.prefix is None else first.prefix,
            ctx,
            topology,
            keys,
            base.State(row.grown, state.shared),
            first.logits,
            first.own,
        )
        nodes = replace(nodes, calls=nodes.calls + calls)
        row = Row(row.own, cache, grown.row)
        return nodes, base.State(row, grown.shared), ctx.cache

    def observe(ctx: base.Context, state: base.State, outcome: base.Outcome):
        row = state.row
        grown = base.State(row.grown, state.shared)
        if not outcome.is_prompt:
            grown = topology.adapt(grown, outcome)
        own, cache = read(ctx, row.own, row.cache, outcome)
        return base.State(Row(own, cache, grown.row), grown.shared)

    return base.Drafter(
        begin,
        draft,
        observe,
        topology.nodes,
        topology.depth,
        taps=tuple(dict.fromkeys(taps)),
        blocks=topology.blocks,
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
) -> base.Drafter:
    """A head of one `layer` over pairs (a token, the state before it): EAGLE and kin.

    `block(params, cache, embedded, feature, nodes) -> output[B, N, width], cache`;
    `laws(params, output)` are an output's logits. The state before a committed token is
    the target's, `features(params, outcome)` [B, D + 1, ..]; before a draft it is
    `handed(output)` of its parent. What is kept is the output at the root; the layer's
    cache holds, after a round, the pair of every committed token but the first, made
    from the target's states. `params` are those of `generate`.
    """

    def init(ctx: base.Context) -> tuple:
        batch, size = ctx.tokens.shape
        cache = decoder_layer.cache(layer, batch, size + sum(topology.run))
        return jnp.zeros((batch, width), layer["qkv"].dtype), cache

    def start(ctx: base.Context, output: Array, cache: Any) -> Start:
        def call(cache, above, nodes, level: int):
            embedded = model.embed(ctx.params["target"], nodes.tokens, nodes.positions)
            nodes = replace(nodes, positions=nodes.positions - 1)
            own, cache = block(ctx.params, cache, embedded, handed(above), nodes)
            return laws(ctx.params, own), own, cache

        root = output[:, None]
        # The root's pair is the last that is committed.
        return Start(call, laws(ctx.params, root)[:, 0], root, cache.length - 1)

    def read(ctx: base.Context, output: Array, cache: Any, outcome: base.Outcome):
        nodes, embedded = read_pairs(model, ctx, cache, outcome)
        given = features(ctx.params, outcome)
        found, after = block(ctx.params, cache, embedded, given, nodes)
        return settle(outcome, found, output, after)

    return drafter(topology, init, start, read, taps, calls=1)


def by_level(laws: Array) -> Call:
    """The `call` of heads whose laws [B, K, V] are those of a level, whatever it bears.

    The first of them is the root's.
    """

    def call(cache, above, block, level: int):
        shape = (*block.tokens.shape, laws.shape[-1])
        return jnp.broadcast_to(laws[:, level, None], shape), (), cache

    return call


def check_depth(name: str, topology: base.Topology, heads: int) -> None:
    """Refuse a tree that is deeper than there are heads."""
    if topology.depth > heads:
        raise MethodError(
            f"the tree is {topology.depth} levels deep and there are {heads} {name} "
            f"heads: use a tree of at most {heads} levels, or train more heads"
        )


def states(outcome: base.Outcome, tap: Any) -> Array:
    """The target's states [B, D + 1, width] at the root and along the accepted path.

    The `j`th is that from which the `j`th committed token was chosen.
    """
    path = outcome.verdict.path
    nodes = jnp.concatenate([jnp.zeros((path.shape[0], 1), path.dtype), path], 1)
    hidden = outcome.target.hidden[tap]
    return jnp.take_along_axis(hidden, nodes[..., None], 1)


def last_state(outcome: base.Outcome, tap: Any, old: Array) -> Array:
    """The state [B, width] from which the extra token was chosen.

    `old` in rows that commit nothing.
    """
    node = tree.last_node(outcome.verdict)[:, None, None]
    found = jnp.take_along_axis(outcome.target.hidden[tap], node, 1)[:, 0]
    moved = outcome.active & (outcome.verdict.count >= 0)
    return jnp.where(moved[:, None], found.astype(old.dtype), old)


def pairs(outcome: base.Outcome, cache: Any) -> Block:
    """The committed tokens of a round as a causal block for a head's own layer.

    Its `j`th node is the `j`th token, at the position of the state that chose it. The
    cache holds one such pair for every committed token but the first.
    """
    tokens, count = tree.committed(outcome.tree, outcome.verdict)
    count = jnp.where(outcome.active, count, 0)
    return causal_block(tokens, cache.length, count, cache.size)


def read_pairs(
    model: LanguageModel, ctx: base.Context, cache: Any, outcome: base.Outcome
) -> tuple[Block, Array]:
    """`pairs`, and the target's embeddings [B, D + 1, width] of their tokens."""
    block = pairs(outcome, cache)
    params = ctx.params["target"]
    return block, model.embed(params, block.tokens, block.positions + 1)


def settle(outcome: base.Outcome, found: Array, old: Array, cache: Any) -> tuple:
    """The output at the last of the round's `pairs`, and the cache that holds them.

    `found` [B, D + 1, width] are the outputs, `old` [B, width] the last one before.
    """
    count = jnp.where(outcome.active, outcome.verdict.count, -1)
    at = jnp.maximum(count, 0)[:, None, None]
    last = jnp.take_along_axis(found, at, 1)[:, 0].astype(old.dtype)
    none = jnp.zeros((count.shape[0], 0), jnp.int32)
    cache = cache.commit(none, count, linear=True)
    return jnp.where((count >= 0)[:, None], last, old), cache
