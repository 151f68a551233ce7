"""A draft model that records refused drafts, to be trained on between requests.

Liu, Hu, Bailis, Stoica, Deng, Cheung, Zhang, *Online Speculative Decoding*, 2024, arXiv
2310.07177, algorithm 2. Verification shows at no cost where the draft is wrong, and the
target's law there. Of every round that refused a draft the buffer Q gets

    Q <- (the text before the refused place, the target's law p of that place)

and every I requests the draft is updated on Q (training/runs/online_draft_run.py),
between calls of `generate`, never during one. Drafting itself is that of
`drafters/model`.

p is kept as its `best` likeliest tokens, the rest as one mass; of the text the last
`window` tokens. Q is a ring of `places` places, which all rows write and which outlives
requests as `out.memory`; it does not change the text.

`keep="first"` takes the first place of every round instead, right or wrong. Training on
refused places alone harmed small drafts where they had been right; the reason is not
known yet (experiments/reports/online.md).

Deviations from the paper: it keeps whole requests with all of their wrong places and
whole laws; here each place stands alone, and its text begins at most `window` tokens
before (the authors' contexts are the requests, 256 tokens or 512 where domains change).
The ring is never emptied, so an update sees older places too; the authors' trainer
empties its buffer at every update. `keep="first"` is ours.

Cost per call: as `drafters/model`; one top-k over V a row and round.
"""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from flax import struct
from jax import Array

from decoding import base, tree, vocab
from decoding.catalogue import Card
from decoding.drafters import model as models
from models.errors import MethodError

CARD = Card(
    paper="Online speculative decoding, arXiv 2310.07177",
    guarantee=base.LAW,
    family="draft model",
    needs=("draft", "topology"),
    trained=True,
    examples={"places": 32, "window": 8, "best": 4},
    sources=("liu2024online",),
)
REFUSED, FIRST = KEEP = ("refused", "first")


@struct.dataclass
class Buffer:
    """Places to train on, from all rows."""

    context: Array  # int32[Q, W]: the text before; the first `size` hold, 0 past them
    size: Array  # int32[Q]; 0: no place
    tokens: Array  # int32[Q, k]: the target's likeliest tokens there
    logp: Array  # float32[Q, k]: their log-probabilities, untransformed
    written: Array  # int32[]: places written so far; the next is `written` modulo Q


@struct.dataclass
class Shared:
    """The state that outlives a request."""

    grown: Any  # the topology's
    buffer: Buffer


def drafter(
    draft,
    topology: base.Topology,
    places: int = 256,
    window: int = 64,
    best: int = 16,
    keep: str = REFUSED,
) -> base.Drafter:
    """Draft as `drafters/model`, and record the target's laws in a buffer.

    Args:
        draft: a `LanguageModel` whose params are `params["draft"]`.
        topology: of the trees.
        places: Q, size of the buffer.
        window: tokens of text stored before a place.
        best: likeliest tokens of a law that are stored.
        keep: one of `KEEP`.
    """
    if keep not in KEEP:
        raise MethodError(f"keep={keep!r}: use one of {KEEP}")
    if min(places, window, best) < 1:
        raise MethodError(
            f"places={places}, window={window}, best={best}: use at least 1 of each"
        )
    inner = models.drafter(draft, topology)

    def init(ctx: base.Context) -> base.State:
        state = inner.init(ctx)
        num_best = min(best, draft.config.vocab_size)
        buffer = Buffer(
            jnp.zeros((places, window), jnp.int32),
            jnp.zeros((places,), jnp.int32),
            jnp.zeros((places, num_best), jnp.int32),
            jnp.zeros((places, num_best), jnp.float32),
            jnp.int32(0),
        )
        return base.State(state.row, Shared(state.shared, buffer))

    def propose(keys, ctx: base.Context, state: base.State):
        inner_state = base.State(state.row, state.shared.grown)
        nodes, inner_state, cache = inner.draft(keys, ctx, inner_state)
        shared = replace(state.shared, grown=inner_state.shared)
        return nodes, base.State(inner_state.row, shared), cache

    def observe(ctx: base.Context, state: base.State, outcome: base.Outcome):
        inner_state = base.State(state.row, state.shared.grown)
        inner_state = inner.observe(ctx, inner_state, outcome)
        buffer = state.shared.buffer
        if not outcome.is_prompt:
            buffer = record(buffer, ctx, outcome, keep)
        return base.State(inner_state.row, Shared(inner_state.shared, buffer))

    return inner._replace(init=init, draft=propose, observe=observe)


def refused(outcome: base.Outcome) -> Array:
    """Find the rows bool[B] whose target token is none of the drafts for its place."""
    nodes, verdict = outcome.tree, outcome.verdict
    last = tree.last_node(verdict)
    children = (nodes.parents == last[:, None]) & (nodes.kind == base.CANDIDATE)
    taken = children & (nodes.tokens == verdict.token[:, None])
    has_token = outcome.active & (verdict.count >= 0) & tree.chosen(verdict)
    return children.any(1) & ~taken.any(1) & has_token


def record(
    buffer: Buffer, ctx: base.Context, outcome: base.Outcome, keep: str = REFUSED
) -> Buffer:
    """Write this round's places to the buffer; `ctx` is that after the round."""
    places, window = buffer.context.shape
    verdict = outcome.verdict
    if keep == REFUSED:
        recorded, node = refused(outcome), tree.last_node(verdict)
        end = ctx.length - 1  # where the target's own token stands
    else:
        recorded = outcome.active & (verdict.count >= 0)
        node = jnp.zeros_like(verdict.count)
        end = ctx.length - 1 - verdict.count
    rows = jnp.arange(recorded.shape[0])
    logits: Any = outcome.target.logits
    raw = logits[rows, node].astype(jnp.float32)
    values, tokens = vocab.top_k(raw, buffer.tokens.shape[1])
    logp = values - vocab.logsumexp(raw)[:, None]
    size = jnp.minimum(end, window)
    index = jnp.arange(window, dtype=jnp.int32)
    at = (end - size)[:, None] + index
    text = jnp.take_along_axis(ctx.tokens, at, 1, mode="clip")
    text = jnp.where(index < size[:, None], text, 0)
    order, total = jnp.cumsum(recorded) - 1, recorded.sum(dtype=jnp.int32)
    stored = recorded & (order >= total - places)  # of more than fit, the last
    slot = jnp.where(stored, (buffer.written + order) % places, places + rows)

    def put(old: Array, new: Array) -> Array:
        return old.at[slot].set(new, mode="drop", unique_indices=True)

    return Buffer(
        put(buffer.context, text),
        put(buffer.size, size),
        put(buffer.tokens, tokens),
        put(buffer.logp, logp),
        buffer.written + total,
    )
