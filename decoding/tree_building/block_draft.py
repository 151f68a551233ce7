"""Drafters that guess a block of tokens in one pass over the target's features.

The backbone is `models/heads/dflash.py`. A head on it (`block_head.Head`) makes the law
of a node's children of its depth's slot and of the node's token.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import Array

from decoding import base
from decoding.tree_building import draft_head, tables
from models.base import LanguageModel
from models.errors import MethodError
from models.heads import dflash
from models.heads.modules import decoder_layer
from models.heads.modules.block_head import Head, Slot


def drafter(
    head: Head,
    heads: Any,
    model: LanguageModel,
    topology: base.Topology,
    taps: Sequence[int] = (),
) -> base.Drafter:
    """Draft with the block of `params["heads"]`.

    Args:
        head: its arithmetic.
        heads: its params, `backbone` among them.
        model: the target.
        topology: of the trees; at most as deep as a block has guesses.
        taps: states that the head was trained on, if not the default ones.
    """
    backbone = heads["backbone"]
    target, own = model.config, dflash.config_of(backbone)
    read = dflash.states(target, taps)
    dflash.check(head.name, backbone, target, read)
    eps = decoder_layer.geometry(target).norm_eps
    if topology.depth > own.drafts:
        raise MethodError(
            f"the tree is {topology.depth} levels deep and a block of these "
            f"{head.name} heads guesses {own.drafts} tokens: use at most {own.drafts} "
            "levels, or train longer blocks"
        )

    def init(ctx: base.Context) -> tuple:
        return (), dflash.cache(backbone, *ctx.tokens.shape)

    def start(ctx: base.Context, _: tuple, cache: Any) -> draft_head.Start:
        params, weights = ctx.params, ctx.params["heads"]["backbone"]
        at, root = ctx.length - 1, ctx.root[:, None]
        embed = lambda tokens: model.embed(params["target"], tokens, at[:, None])
        mask = None
        if not own.learned_mask:
            mask = embed(jnp.full_like(root, own.mask_token))
        x = dflash.inputs(weights, embed(root)[:, 0], mask)
        raw, cache = dflash.block(weights, target, cache, x, at)
        output = lambda states: dflash.limited(
            weights, model.head(params["target"], states)
        )
        states = dflash.normed(weights, raw, eps)
        slots, every = Slot(raw, states), output(states)

        def laws(level: int, tokens: Array, carry: Any) -> tuple[Array, tuple]:
            slot = Slot(*(x[:, level, None] for x in slots))
            places = jnp.broadcast_to(at[:, None] + level, tokens.shape)
            embedded = model.embed(params["target"], tokens, places)
            own = params["heads"]
            carry, summary = head.step(own, carry, tokens, embedded, slot)
            seen = head.watched(own, tokens, slot)
            found = head.logits(own, slot, every[:, level, None], summary, output)
            shape = (*tokens.shape, found.shape[-1])
            return jnp.broadcast_to(found, shape), (seen, carry)

        def call(cache: Any, above: Any, nodes: Any, level: int) -> tuple:
            found, passed = laws(level, nodes.tokens, above[1])
            return found, passed, cache

        def table(keys: Array) -> tables.Table:
            own, ways, depth = params["heads"], topology.tabled, topology.depth
            above = jnp.broadcast_to(root[:, None], (root.shape[0], depth, 1))
            request = (ways.children, topology.draw)
            if ways.marginal:
                alone = every[:, :depth, None]
                return tables.table(ctx, keys, above, alone, *request, True)
            if head.reads:
                before = tables.likely(every[:, : depth - 1], ways.above)
                width = (root.shape[0], 1, before.shape[2])
                first = jnp.broadcast_to(root[:, None], width)
                above = jnp.concatenate([first, before], 1)
            flat = lambda x: jnp.broadcast_to(x, above.shape).reshape(len(x), -1)
            places = at[:, None, None] + jnp.arange(depth)[:, None]
            embedded = model.embed(params["target"], flat(above), flat(places))
            embedded = embedded.reshape(*above.shape, -1)
            slot = Slot(*(x[:, :depth, None] for x in slots))
            carry = head.start(own, above.shape)
            _, summary = head.step(own, carry, above, embedded, slot)
            found = head.logits(own, slot, every[:, :depth, None], summary, output)
            found = jnp.broadcast_to(found, (*above.shape, found.shape[-1]))
            return tables.table(ctx, keys, above, found, *request, not head.reads)

        logits, first = laws(0, root, head.start(params["heads"], root.shape))
        known = None if head.memory(heads) else table
        return draft_head.Start(
            call,
            logits[:, 0],
            first,
            cache=cache,
            table=known,
            watched=lambda passed: passed[0],
        )

    def observe(ctx: base.Context, _: tuple, cache: Any, outcome: base.Outcome):
        weights = ctx.params["heads"]["backbone"]
        hidden = jnp.stack([draft_head.states(outcome, tap) for tap in read], -2)
        nodes = draft_head.pairs(outcome, cache)
        found = dflash.features(weights, hidden, eps)
        cache = dflash.read(weights, target, cache, found, nodes)
        return (), draft_head.committed(outcome, cache)

    return draft_head.drafter(topology, init, start, observe, read, calls=1)
