"""PEARL: draft the next block while the last one is verified.

Liu, Li, Lv, Liu, Zhu, Hu, Sun, *PEARL: Parallel Speculative Decoding with Adaptive
Draft Length*, 2025, arXiv 2408.11850, section 4. In every step the draft model and the
target start from the same text and its unverified tail, and neither waits for the
other:

    draft    x_1 .. x_gamma after the tail
    target   the laws of the tail's tokens, and of x_1
    pre      (no tail) x_1 is verified: accepted, x_2 .. x_gamma become the tail
    post     (a tail) the tail and x_1 are verified: all accepted, x_2 .. x_gamma are
             the next tail; else the text ends at the first rejection, with no tail

The tree of a round is the tail that the round before has drafted, a chain of gamma - 1
tokens or none; x_1 is accepted where it is the token that the verifier puts after the
tail. A run of accepted drafts has no bound: each of its rounds commits gamma tokens.

On one device the two models run one after the other. Where they run beside each other a
round takes max(gamma t_draft, t_target), which `critical_path` sums up.

Deviations from the paper: x_1 is accepted by equality with the verifier's token. For
greedy and coupled verification that is the paper's rule. The paper's coin for x_1 at
temperature > 0 accepts it with probability 1 - TV(p, q); equality after
`verifiers/rejection`, whose token does not look at x_1, with sum of p q. The tail meets
the paper's coins there. The round after a pause has no tail, so that a short draft
which ends one shows nothing: with automatic widths a PEARL that once paused stays so,
in later calls too.

Cost per call: gamma draft calls a round, accepted or not; after a pause one more for
every 2 gamma missed tokens.
"""

from collections.abc import Sequence
from dataclasses import replace

import jax.numpy as jnp
from flax import struct
from jax import Array

from decoding import base, tree
from decoding.catalogue import Card
from decoding.tree_building import adaptive_chain, draft_model
from models.errors import MethodError

CARD = Card(
    paper="PEARL, arXiv 2408.11850",
    guarantee=base.LAW,
    family="draft model",
    needs=("draft", "draw"),
    trained=True,
    examples={"gamma": 3},
    sources=("liu2025pearl",),
)


@struct.dataclass
class Tail:
    """Drafts that are not verified yet."""

    next: Array  # int32[B, gamma]: x_1 .. x_gamma, drafted in this round
    tail: Array  # int32[B, gamma - 1]: the tree of the coming round
    count: Array  # int32[B]: length of `tail`: gamma - 1 (post-verify) or 0 (pre)
    laws: Array | None  # float32[B, gamma, V]: of `next`, where the draw needs them
    verified: Array | None  # float32[B, gamma - 1, V]: of `tail`


def drafter(draft, gamma: int = 4, draw: str = base.POINT) -> base.Drafter:
    """Draft `gamma` tokens a round: about a target call's time ÷ a draft call's."""
    model = draft
    if gamma < 2:
        raise MethodError(
            f"gamma={gamma} leaves no tail to verify: use at least 2, or drafters/plain"
        )
    sampled = draw in (base.IID, base.NO_REPLACE)

    def init(ctx: base.Context) -> base.State:
        batch = ctx.tokens.shape[0]
        drafts = jnp.zeros((batch, gamma), jnp.int32)
        laws = None
        if sampled:
            size = model.config.vocab_size
            laws = jnp.zeros((batch, gamma, size), jnp.float32)
        rest = None if laws is None else laws[:, 1:]
        tail = Tail(drafts, drafts[:, 1:], drafts[:, 0], laws, rest)
        return base.State((adaptive_chain.beside(model, ctx, 2 * gamma + 1), tail))

    def on(memory: Array, step: adaptive_chain.Step):
        return memory, step.live, step.live

    def propose(keys, ctx: base.Context, state: base.State):
        cache, tail = state.row
        params = ctx.params["draft"]
        late = jnp.int32(0)
        if ctx.depth is not None:  # after a pause
            cache, late = draft_model.catch_up(model, params, cache, ctx, 2 * gamma)
        ahead = _after_tail(ctx, tail, model.config.vocab_size)
        logits, cache = draft_model.root_logits(model, params, cache, ahead)
        call = adaptive_chain.caller(model, params)
        chain = adaptive_chain.drafted(
            call, cache, ahead, keys, draw, logits, gamma, on, ()
        )
        laws = tail.verified
        if laws is not None:
            laws = jnp.pad(laws, ((0, 0), (0, 1), (0, 0)))
        nodes = tree.chain(
            ctx.root, tail.tail, tail.count, draw=draw, logits=laws, calls=gamma + late
        )
        drafted = tail.replace(next=chain.tokens, laws=chain.laws)
        return nodes, base.State((chain.cache, drafted)), ctx.cache

    def observe(ctx: base.Context, state: base.State, outcome: base.Outcome):
        cache, tail = state.row
        if outcome.is_prompt:
            cache = draft_model.read_prompt(model, ctx.params["draft"], cache, outcome)
            return base.State((cache, tail))
        verdict = outcome.verdict
        if outcome.is_pause:  # the next draft reads what was missed, and has no tail
            before = ctx.length - (verdict.count + 1)
            cache = replace(cache, length=jnp.minimum(cache.length, before - 1))
            return base.State((cache, tail.replace(count=jnp.zeros_like(tail.count))))
        whole = (verdict.count == tail.count) & (verdict.token == tail.next[:, 0])
        count = jnp.where(whole & outcome.active, gamma - 1, 0)
        # The draft model's keys of the committed text and the new tail stay.
        length = ctx.length - 1 + count
        rest = None if tail.laws is None else tail.laws[:, 1:]
        tail = Tail(tail.next, tail.next[:, 1:], count, tail.laws, rest)
        return base.State((cache.replace(length=length), tail))

    return base.Drafter(init, propose, observe, gamma, gamma - 1, pauses=True)


def _after_tail(ctx: base.Context, tail: Tail, vocab_size: int) -> base.Context:
    """Return the context as if the whole tail were accepted."""
    batch, size = tail.tail.shape
    rows = jnp.arange(batch)[:, None]
    index = jnp.arange(size, dtype=jnp.int32)
    at = ctx.length[:, None] + index
    at = jnp.where(index < tail.count[:, None], at, ctx.tokens.shape[1])
    state = ctx.transform
    if ctx.law.advance is not None:
        # The logits of a tail that was drafted a round ago are gone: a transform that
        # remembers logits takes zeros for them, here and in no committed state.
        none = jnp.zeros((batch, vocab_size), jnp.float32)
        advance = tree.over_rows(ctx.law.advance, 3)
        for i in range(size):
            moved = advance(state, tail.tail[:, i], none, {})
            state = tree.masked(i < tail.count, moved, state)
    return replace(
        ctx,
        tokens=ctx.tokens.at[rows, at].set(tail.tail, mode="drop"),
        length=ctx.length + tail.count,
        transform=state,
    )


def critical_path(
    rounds: Sequence[int], gamma: int, t_draft: float, t_target: float
) -> list[float]:
    """Model the seconds of texts if the two models ran in parallel.

    Args:
        rounds: target calls of each text.
        gamma: draft calls of a round.
        t_draft: seconds of a draft call.
        t_target: seconds of a target call.
    """
    return [n * max(gamma * t_draft, t_target) for n in rounds]
