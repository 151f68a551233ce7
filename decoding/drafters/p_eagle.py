"""P-EAGLE: EAGLE-3's pairs, and masks behind them, guess several tokens in one pass.

Hui et al., *P-EAGLE: Parallel-Drafting EAGLE with Scalable Training*, 2026, arXiv
2602.01469. With a_0 the output of the last committed token's pair and a_1 .. a_{K-1}
those of pairs of masks behind it (`models/heads/p_eagle.py`),

    q_j = softmax(W norm(a_j)),    j = 0 .. K - 1

is the law of the children of *every* node at depth j. The state is a_0 and the keys of
the committed tokens' pairs; the masks' keys are dropped.

Deviations from the paper: committed pairs are read when a round ends, the masks when
the next begins, in two passes in place of one. A text whose prompt is one token has no
pair yet; its first round drafts from a_0 = 0.

Cost per call: the layers over K - 1 masks and over the round's committed tokens, and K
products with the head; no model call.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import Array

from decoding import base
from decoding.catalogue import Card
from decoding.tree_building import draft_head
from models.base import causal_block
from models.heads import eagle3, p_eagle
from models.heads.modules import decoder_layer

CARD = Card(
    paper="P-EAGLE, arXiv 2602.01469",
    guarantee=base.LAW,
    family="head",
    needs=("heads", "model", "topology"),
    trained=True,
    sources=("hui2026peagle",),
)


def drafter(
    heads, model, topology: base.Topology, taps: Sequence[int] = ()
) -> base.Drafter:
    """Draft with `params["heads"]`, of `models/heads/p_eagle.py`.

    `taps` are the states that the heads were trained on, if other than EAGLE-3's.
    """
    p_eagle.check(heads, model.config)
    depths = p_eagle.config_of(heads).depths
    draft_head.check_depth("P-EAGLE", topology, depths)
    target = model.config
    eps, read = decoder_layer.geometry(target).norm_eps, eagle3.taps(target, taps)

    def init(ctx: base.Context) -> tuple:
        batch, size = ctx.tokens.shape
        cache = p_eagle.cache(heads, batch, size)
        return jnp.zeros((batch, target.d_model), heads["mask"].dtype), cache

    def start(ctx: base.Context, first: Array, cache: Any) -> draft_head.Start:
        params = ctx.params["heads"]
        outputs = first[:, None]
        if depths > 1:
            batch, count = len(first), depths - 1
            none = jnp.zeros((batch, count), jnp.int32)
            # The root's pair is the last that is committed.
            nodes = causal_block(
                none, cache.length, jnp.full((batch,), count), cache.size
            )
            x, r = (
                jnp.broadcast_to(z, (batch, count, z.shape[-1]))
                for z in p_eagle.unknown(params, eps)
            )
            more, cache = p_eagle.block(params, target, cache, x, r, nodes)
            outputs = jnp.concatenate([outputs, more.astype(first.dtype)], 1)
        laws = p_eagle.logits(params, outputs, eps)
        laws = eagle3.spread(params, laws, target.vocab_size)
        return draft_head.marginal(ctx, topology, laws, cache)

    def observe(ctx: base.Context, first: Array, cache: Any, outcome: base.Outcome):
        params = ctx.params["heads"]
        nodes, theirs = draft_head.read_pairs(model, ctx, cache, outcome)
        embedded = p_eagle.embed(params, nodes.tokens, theirs)
        three = jnp.stack([draft_head.states(outcome, tap) for tap in read], -2)
        g = decoder_layer.joint(three, params["fuse"])
        x, r = p_eagle.inputs(params, embedded, g, eps)
        outputs, after = p_eagle.block(params, target, cache, x, r, nodes)
        return draft_head.settle(outcome, outputs, first, after)

    return draft_head.drafter(topology, init, start, observe, read, calls=1)
