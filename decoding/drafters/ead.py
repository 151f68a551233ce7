"""Entropy adaptive decoding: the large model writes while the text is uncertain.

Simonds, *Entropy Adaptive Decoding: Dynamic Model Switching for Efficient Inference*,
2025, arXiv 2502.06833, equations 1 to 4. With p_t the law of the model that writes, and
c the tokens since the last switch,

    H_t = - sum over v of p_t(v) log2 p_t(v)
    mean_t = mean of the last w of H
    if c >= d_min:  the large model writes next where mean_t > tau, else the small one

H → `entropies`; w → `window`; tau → `threshold`; d_min → `dwell`; c → `since`. The
small model is the draft model and leads; use it with `verifiers/accept_drafted`, whose
block is the large model's catch-up. With a lossless verifier the drafts are only
drafts, and the text is plain decoding's.

Deviations from the paper (reconstructed: its equations are confirmed at second hand,
its values of w, tau and d_min are not, so that all defaults are ours): token t comes
from the model whose entropy H_t is, and the rule decides on token t + 1; the small
model begins; before w tokens were written the mean is over those written; H is of the
raw law, before temperature.

Cost per call: one small call a token, two tokens wide in the first of a round; while
the large model writes, one small call a token still, which fills its cache.
"""

import jax.numpy as jnp
from flax import struct
from jax import Array

from decoding import base, tree, vocab
from decoding.catalogue import Card
from decoding.tree_building import adaptive_chain, draft_model
from models.errors import MethodError

CARD = Card(
    paper="Entropy adaptive decoding, arXiv 2502.06833",
    guarantee=base.LAW,
    family="switching",
    data=("threshold",),
    needs=("draft", "draw"),
    trained=True,
    examples={"length": 3, "window": 2, "threshold": 2.0, "dwell": 2},
    sources=("simonds2025entropy",),
)


@struct.dataclass
class Switch:
    """The model that writes, and the statistics behind it."""

    entropies: Array  # float32[B, w]: bits, of the last tokens, in no order
    seen: Array  # int32[B]: entropies noted so far; the next goes to `seen % w`
    since: Array  # int32[B]: tokens since the last switch
    large: Array  # bool[B]
    threshold: Array  # float32[B]: tau


def drafter(
    draft,
    length: int = 8,
    window: int = 5,
    threshold: float = 1.0,
    dwell: int = 10,
    draw: str = base.POINT,
) -> base.Drafter:
    """Draft with the small model until mean entropy calls for the large one.

    Args:
        draft: the small model, whose params are `params["draft"]`.
        length: most drafts of a round; it does not change the text.
        window: w, tokens that the mean covers.
        threshold: tau, in bits.
        dwell: d_min, least tokens between switches.
        draw: one of `base.DRAWS`.
    """
    model = draft
    if min(length, window) < 1 or dwell < 0:
        raise MethodError(
            f"length={length}, window={window}, dwell={dwell}: use at least 1, 1 and 0"
        )

    def init(ctx: base.Context) -> base.State:
        batch = ctx.tokens.shape[0]
        none = jnp.zeros((batch,), jnp.int32)
        tau = jnp.full((batch,), threshold, jnp.float32)
        entropies = jnp.zeros((batch, window), jnp.float32)
        switch = Switch(entropies, none, none, none > 0, tau)
        cache = adaptive_chain.beside(model, ctx, length + 1)
        return base.State((cache, switch))

    def note(switch: Switch, logits: Array) -> Switch:
        """Note a token whose law had the raw `logits` float32[B, V]."""
        rows = jnp.arange(logits.shape[0])
        bits = vocab.entropy(logits) / jnp.log(2.0)
        entropies = switch.entropies.at[rows, switch.seen % window].set(bits)
        seen, since = switch.seen + 1, switch.since + 1
        mean = entropies.sum(1) / jnp.minimum(seen, window)
        large = jnp.where(since >= dwell, mean > switch.threshold, switch.large)
        since = jnp.where(large != switch.large, 0, since)
        return Switch(entropies, seen, since, large, switch.threshold)

    def rule(switch: Switch, step: adaptive_chain.Step):
        small = ~switch.large  # only the first draft may find it false
        after = tree.masked(
            small, base.State(note(switch, step.raw)), base.State(switch)
        )
        return after.row, small, ~after.row.large

    def propose(keys, ctx: base.Context, state: base.State):
        cache, switch = state.row
        params = ctx.params["draft"]
        logits, cache = draft_model.root_logits(model, params, cache, ctx)
        call = adaptive_chain.caller(model, params)
        chain = adaptive_chain.drafted(
            call, cache, ctx, keys, draw, logits, length, rule, switch
        )
        nodes = chain.tree(ctx.root, draw)
        return nodes, base.State((chain.cache, chain.memory)), ctx.cache

    def observe(ctx: base.Context, state: base.State, outcome: base.Outcome):
        cache, switch = state.row
        if outcome.is_prompt:
            cache = draft_model.read_prompt(model, ctx.params["draft"], cache, outcome)
            return base.State((cache, switch))
        cache = adaptive_chain.keep(cache, outcome)
        rows = jnp.arange(cache.length.shape[0])
        raw = outcome.target.logits
        assert raw is not None, "a round has logits"
        logits = raw[rows, tree.last_node(outcome.verdict)]
        wrote = outcome.active & tree.chosen(outcome.verdict)
        after = tree.masked(wrote, base.State(note(switch, logits)), base.State(switch))
        return base.State((cache, after.row))

    return base.Drafter(init, propose, observe, length + 1, length)
