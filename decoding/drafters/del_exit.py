"""DEL: the target drafts with its first layers, as many as pay best, while it is sure.

Entezari Zarch, Gao, Jiang, Annavaram, *DEL: Context-Aware Dynamic Exit Layer for
Efficient Self-Speculative Decoding*, 2025, arXiv 2504.05598, section 4. Whenever the
target has run, its head reads the hidden states after l layers. It gives the tokens
that an exit there would have drafted ("shadow tokens"), and their confidence (top
probability). They are compared with the target's best tokens; for every layer l,
decayed by omega a round,

    C_l, F_l    counts, and sums of confidence, of matches and mismatches
    alpha_l   = matches / (matches + mismatches)
    TPL(l, g) = (1 - alpha_l^(g+1)) / (1 - alpha_l) / (L + g l),   g = 0 .. length - 1
    l*, g*    = argmax TPL;  tau_l = (mean confidence of matches + of mismatches) / 2

Draft with the first l* layers, up to and with the first token whose confidence is below
tau, at most `length`. As in the official code g* chooses the layers alone: one token is
drafted even if g* = 0. C, F → `counts`, `sums`; omega → `decay`. The positions that
count are those of the tokens that drafting rounds commit, and the last `prompt` of the
prompt; every request has its own. Without observations the first exit drafts one token;
where one of the means has none, tau is 0 (there 0 / 0: the code drafts on).

One exit, `threshold` 0 and a `length` are the paper's baseline: exit and draft length
are fixed, and nothing adapts.

Deviations from the paper: the statistics are summed over the live rows, because which
layers run is one choice for a batch; the prompt's statistics are there before the first
round, to which the official code gives a single token of the first exit; at g* = 0 the
official code counts the positions of refused drafts too; above temperature 0 it
compares the drawn token's warped probability with tau, here the raw law's largest one
is compared; verification runs all layers for every node, the first l included, which
also writes the keys that the drafts lack.

Cost per call: l* / L of a target call a draft; the head on `nodes` states of each
exit (give fewer `exits` for large vocabularies).
"""

from collections.abc import Sequence
from dataclasses import replace

import jax.numpy as jnp
from flax import struct
from jax import Array

from decoding import base, vocab
from decoding.catalogue import Card
from decoding.tree_building import adaptive_chain
from models.errors import MethodError

CARD = Card(
    paper="DEL, arXiv 2504.05598",
    guarantee=base.LAW,
    family="self-speculative",
    data=("decay",),
    needs=("model", "draw"),
    examples={"length": 4},
    sources=("entezarizarch2025del",),
)


@struct.dataclass
class Row:
    """One request's matches of every exit."""

    counts: Array  # float32[B, E, 2]: C, mismatches and matches of every exit
    sums: Array  # float32[B, E, 2]: F, their confidences
    start: Array  # int32[B]: length of the prompt
    decay: Array  # float32[B]: omega
    layers: Array  # int32[B]: layers that the request's drafts have run


def drafter(
    model,
    length: int = 18,
    exits: Sequence[int] = (),
    decay: float = 0.95,
    prompt: int = 32,
    threshold: float | None = None,
    draw: str = base.POINT,
) -> base.Drafter:
    """Draft with the target's first layers, as many as pay best.

    Args:
        model: the target.
        length: most drafts of a round.
        exits: numbers of layers to choose from; none: 1 to all but one.
        decay: omega.
        prompt: last positions of a prompt that count.
        threshold: confidence below which a draft ends, in place of tau; 0: never.
        draw: one of `base.DRAWS`.
    """
    depth = model.config.n_layers
    layers = tuple(exits) or tuple(range(1, depth))
    if length < 1 or prompt < 1:
        raise MethodError(f"length={length}, prompt={prompt}: use at least 1")
    if not layers or not 1 <= min(layers) <= max(layers) < depth:
        raise MethodError(
            f"exits={layers} with {depth} layers: name some of 1 to {depth - 1}"
        )
    if threshold is not None and not 0 <= threshold <= 1:
        raise MethodError(f"threshold={threshold}: use a probability, 0 to 1")
    if not 0 <= decay <= 1:
        raise MethodError(f"decay={decay}: use 0 (the last round alone) to 1 (all)")
    table = jnp.asarray(layers, jnp.int32)

    def init(ctx: base.Context) -> base.State:
        none = jnp.zeros((*ctx.length.shape, len(layers), 2), jnp.float32)
        omega = jnp.full(ctx.length.shape, decay, jnp.float32)
        return base.State(
            Row(none, none, ctx.length, omega, jnp.zeros_like(ctx.length))
        )

    def draft(keys, ctx: base.Context, state: base.State):
        params, row = ctx.params["target"], state.row
        live = ctx.active[:, None, None]
        counts, sums = (jnp.where(live, x, 0.0).sum(0) for x in (row.counts, row.sums))
        best, level = choose(counts, sums, table, depth, length)
        level = level if threshold is None else jnp.float32(threshold)
        run = jnp.arange(depth)[:, None] < table[best]
        run = jnp.broadcast_to(run, (depth, 2))

        def rule(memory, step: adaptive_chain.Step):
            return memory, step.live, confidence(step.raw) >= level

        logits, cache = adaptive_chain.root_logits(
            model, params, ctx.cache, ctx.root, run
        )
        call = adaptive_chain.caller(model, params, run)
        chain = adaptive_chain.drafted(
            call, cache, ctx, keys, draw, logits, length, rule, ()
        )
        calls = jnp.where(ctx.active, chain.calls + 1, 0)  # the root's, too
        row = replace(row, layers=row.layers + calls * table[best])
        return chain.tree(ctx.root, draw), base.State(row), chain.cache

    def observe(ctx: base.Context, state: base.State, outcome: base.Outcome):
        if outcome.is_pause:
            return state  # statistics are of rounds that draft
        verdict, hidden, row = outcome.verdict, outcome.target.hidden, state.row
        batch = verdict.count.shape[0]
        if outcome.is_prompt:
            index = jnp.arange(prompt, dtype=jnp.int32)
            at = verdict.count[:, None] - index
            position = ctx.length[:, None] - 2 - index
            valid = (at >= 0) & (position >= row.start[:, None] - 1 - prompt)
        else:
            at = jnp.pad(verdict.path, ((0, 0), (1, 0)))
            index = jnp.arange(at.shape[1], dtype=jnp.int32)
            valid = index <= verdict.count[:, None]
        valid = valid & outcome.active[:, None]
        rows, at = jnp.arange(batch)[:, None], jnp.maximum(at, 0)
        params = ctx.params["target"]

        def read(layer: int) -> Array:
            return model.head(params, model.norm(params, hidden[layer][rows, at]))

        raw = outcome.target.logits
        truth = vocab.argmax(read(depth) if raw is None else raw[rows, at])
        counts, sums = [], []
        for layer in layers:
            logits = read(layer)
            match = vocab.argmax(logits) == truth
            each = jnp.stack([valid & ~match, valid & match], -1).astype(jnp.float32)
            counts.append(each.sum(1))
            sums.append((each * confidence(logits)[..., None]).sum(1))
        # nothing seen, nothing forgotten
        weight = jnp.where(valid.any(1), row.decay, 1.0)[:, None, None]
        counted = weight * row.counts + jnp.stack(counts, 1)
        summed = weight * row.sums + jnp.stack(sums, 1)
        return base.State(replace(row, counts=counted, sums=summed))

    taps = (*layers, depth)
    return base.Drafter(
        init, draft, observe, length + 1, length, taps=taps, pauses=True
    )


def confidence(logits: Array) -> Array:
    """Return the probability float32[...] of the best token."""
    return jnp.exp(vocab.maximum(logits) - vocab.logsumexp(logits))


def choose(
    counts: Array, sums: Array, table: Array, depth: int, length: int
) -> tuple[Array, Array]:
    """Return the index int32[] of the exit that pays best, and its threshold tau.

    Args:
        counts: float32[E, 2], C of the mismatches and matches.
        sums: float32[E, 2], F of the same.
        table: int32[E], layers of each exit.
        depth: L, layers of the target.
        length: values 0 .. length - 1 of g that are compared.
    """
    total = counts.sum(-1)
    alpha = counts[:, 1] / jnp.maximum(total, 1e-9)
    drafts = jnp.arange(length)
    tokens = jnp.cumsum(alpha[:, None] ** drafts, -1)
    best = jnp.argmax(tokens / (depth + drafts * table[:, None])) // length
    mean = sums / jnp.maximum(counts, 1e-9)
    tau = jnp.where((counts > 0).all(-1), mean.sum(-1) / 2, 0.0)
    return best, jnp.where(total[best] > 0, tau[best], jnp.inf)
