"""EasySpec: the draft model's attention layers run side by side, and its cache is
rebuilt exactly after every round.

Wu, Gao, Li, Wu, *EasySpec: Layer-Parallel Speculative Decoding for Efficient
Multi-GPU Utilization*, 2025, arXiv 2502.02493. The layers of the draft model but the
first and the last stand in groups of N. With h the input of a group l .. l + N - 1,

    a_i = Attn_i(norm_i(h))           for all i of the group, from the same h
    h   = h + a_i;  h = h + MLP_i(norm(h))     for i = l .. l + N - 1, in turn

so that N attention layers need not wait for each other. The keys of such a call are not
the draft model's own. After verification they are dropped, and one ordinary call over
the committed tokens rebuilds them ("bonus calibration"); its last logits begin the
draft.

N → `group`; h → `x`; a → `added`. Tokens are drawn from the law of the fuzzy call, and
verifiers receive that law, so that every verifier stays exact.

Deviations from the paper (weak evidence: its code, github.com/Yize-Wu/EasySpec, was not
compared, and the order of the residual additions within a group is reconstructed): on
one device the attentions of a group run one after the other, so the drafts are the
paper's and the speed is not; calibration is the first call of the next round rather
than the last of this one.

Cost per call: as many draft calls as levels, the first of depth + 1 nodes. On enough
devices a fuzzy call takes the time of about 2 + (L - 2) / N attention layers.
"""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from decoding import base
from decoding.catalogue import Card
from decoding.tree_building import adaptive_chain, draft_model, grow
from models.base import Block, Hidden, LanguageModel, ModelOutput, Tap
from models.errors import MethodError

CARD = Card(
    paper="EasySpec, arXiv 2502.02493",
    guarantee=base.LAW,
    family="draft model",
    needs=("draft", "topology"),
    trained=True,
    sources=("wu2025easyspec",),
)


def drafter(draft, topology: base.Topology, group: int = 4) -> base.Drafter:
    """Draft in groups of `group` layers; 1 is `drafters/model` with a calibrated cache.

    State: the draft model's cache, exact for the text at the beginning of the round,
    and the topology's state.
    """
    model = draft
    if group < 1:
        raise MethodError(f"group={group}: a group holds at least one layer")
    fuzzy = parallel(model, group)
    width = topology.depth + 1  # tokens of a round: all that calibration has to read

    def init(ctx: base.Context) -> base.State:
        cache = adaptive_chain.beside(model, ctx, sum(topology.run) + width)
        grown = topology.init(ctx.tokens.shape[0])
        return base.State((cache, grown.row), grown.shared)

    def propose(keys, ctx: base.Context, state: base.State):
        cache, row = state.row
        params = ctx.params["draft"]
        # A row that committed nothing reads its root again.
        cache = replace(cache, length=jnp.minimum(cache.length, ctx.length - 1))
        late = jnp.int32(0)
        if ctx.depth is not None:  # after a pause
            arguments = (model, params, cache, ctx, width)
            cache, late = draft_model.catch_up(*arguments, lag=width)
        taps = draft_model.taps(topology)
        logits, states, cache = draft_model.root(model, params, cache, ctx, taps, width)
        nodes, grown, cache = grow.grow(
            fuzzy,
            params,
            cache,
            ctx,
            topology,
            keys,
            base.State(row, state.shared),
            logits,
            states,
        )
        cache = replace(cache, length=ctx.length)  # the root's keys are exact, too
        nodes = replace(nodes, calls=jnp.maximum(nodes.calls, 0) + 1 + late)
        return nodes, base.State((cache, grown.row), grown.shared), ctx.cache

    def observe(ctx: base.Context, state: base.State, outcome: base.Outcome):
        cache, row = state.row
        if outcome.is_prompt:
            cache = draft_model.read_prompt(model, ctx.params["draft"], cache, outcome)
            return base.State((cache, row), state.shared)
        if outcome.is_pause:
            return state  # the next draft reads what was missed
        grown = topology.adapt(base.State(row, state.shared), outcome)
        return base.State((cache, grown.row), grown.shared)

    return base.Drafter(
        init,
        propose,
        observe,
        topology.nodes,
        topology.depth,
        blocks=topology.blocks,
        pauses=True,
    )


def parallel(model: LanguageModel, group: int):
    """Make a call of `model` whose attention layers run in groups.

    Of the states, the call returns only the last, normed.
    """
    last = model.config.n_layers - 1
    spans = [(i, min(i + group, last)) for i in range(1, last, group)]
    attention = np.zeros((last + 1, 2), bool)
    attention[:, 0] = True

    def call(
        params: Any, cache: Any, block: Block, taps: tuple[Tap, ...] = ()
    ) -> tuple[ModelOutput, Any]:
        def part(x: Array, cache: Any, i: int, run: np.ndarray | None):
            mask = None if run is None else jnp.asarray(run)
            masked_block = replace(block, run=mask)
            x, cache, _ = model.layers(params, cache, x, masked_block, i, i + 1)
            return x, cache

        cache = cache.open(block)
        x = model.embed(params, block.tokens, block.positions)
        x, cache = part(x, cache, 0, None)
        for lo, hi in spans:
            added = []
            for i in range(lo, hi):
                after, cache = part(x, cache, i, attention)
                added.append(after - x)
            for i in range(lo, hi):
                x, cache = part(x + added[i - lo], cache, i, ~attention)
        if last:
            x, cache = part(x, cache, last, None)
        x = model.norm(params, x)
        return ModelOutput(model.head(params, x), Hidden(dict.fromkeys(taps, x))), cache

    return call
