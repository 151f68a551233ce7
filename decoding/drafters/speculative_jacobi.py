"""Speculative Jacobi decoding: the last round's laws draft the next round's window.

Teng, Shi, Liu, Ning, Dai, Wang, Li, Liu, *Accelerating Auto-regressive Text-to-Image
Generation with Training-free Speculative Jacobi Decoding*, 2025, arXiv 2410.01699,
section 4.2. A window of W tokens x_1 .. x_W follows the text, each with the law q_i it
was drawn from. A round computes p_i, the target's law at every position given the
tokens before it, and

    accept x_1 .. x_j     while r_i < p_i(x_i) / q_i(x_i)
    the next token     ~  norm((p_{j+1} - q_{j+1})+)
    x_i ~ p_i, q_i := p_i for what is left of the window; new positions are initialised

q → `laws`; the coins and the residual are `verifiers/rejection` over a chain of draws
`iid`. Greedily it is Jacobi iteration, and at temperature > 0 the default verifier
couples the window with the positions' noise. New positions begin with

    random    a token drawn uniformly            (q one-hot)
    repeat    the token on their left            (q one-hot)
    sample    a draw from the law on their left  (q that law; none in the first round,
              which repeats)

Deviations from the paper: a window that is accepted as a whole earns one token more,
from the law after it; each row advances by its own accepted tokens, where the official
code takes the least of the batch; the paper's images have neighbours above, too.

Cost per call: a draw of [B, W, V], and [B, W, V] floats kept; no model call.
"""

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array

from decoding import base, tree, vocab
from decoding.catalogue import Card
from decoding.tree_building import child_sampling
from models.errors import MethodError

CARD = Card(
    paper="Speculative Jacobi decoding, arXiv 2410.01699",
    guarantee=base.LAW,
    family="training-free",
    needs=("draw", "vocab_size"),
    examples={"window": 4},
    sources=("teng2025accelerating",),
)

INITS = ("random", "repeat", "sample")


@struct.dataclass
class Window:
    """The last round's laws for the positions after the text."""

    laws: Array  # float32[B, W, V]: warped; the first `known` are valid
    known: Array  # int32[B]; if 0, laws[:, 0] is the last token's; -1: no law


def drafter(
    vocab_size: int, window: int = 16, init: str = "random", draw: str = base.POINT
) -> base.Drafter:
    """Draft `window` tokens a round; `init` is one of `INITS`, for new positions."""
    fresh = init
    if window < 1:
        raise MethodError(f"window={window}: use at least 1, or drafters/plain")
    if fresh not in INITS:
        raise MethodError(f"init={fresh!r}: use one of {INITS}")
    has_laws = draw in (base.IID, base.NO_REPLACE)
    index = jnp.arange(window, dtype=jnp.int32)

    def begin(ctx: base.Context) -> base.State:
        batch = ctx.tokens.shape[0]
        laws = jnp.zeros((batch, window, vocab_size), jnp.float32)
        return base.State(Window(laws, jnp.full((batch,), -1, jnp.int32)))

    def draft(keys, ctx: base.Context, state: base.State):
        laws, known = state.row.laws, state.row.known[:, None]
        there = index < known
        last = jnp.maximum(known - 1, 0)
        if fresh == "sample":
            at = jnp.minimum(index, last)[..., None]
            laws = jnp.take_along_axis(laws, at, 1)
            there = there | (known >= 0)
        fold = jax.vmap(jax.random.fold_in, in_axes=(0, None))
        tokens = drawn(fold(keys, 0), ctx, laws)
        if fresh == "random":
            place = lambda key: jax.random.randint(key, (window,), 0, vocab_size)
            new = jax.vmap(place)(fold(keys, 1))
        else:
            left = jnp.take_along_axis(tokens, last, 1)
            new = jnp.where(known > 0, left, ctx.root[:, None])
        tokens = jnp.where(there, tokens, new).astype(jnp.int32)
        logits = None
        if has_laws:
            ids = jnp.arange(vocab_size)
            point = jnp.where(ids == tokens[..., None], 0.0, -jnp.inf)
            laws = jnp.where(there[..., None], laws, point)
            logits = jnp.pad(laws, ((0, 0), (0, 1), (0, 0)))
        count = jnp.full(ctx.length.shape, window, jnp.int32)
        nodes = tree.chain(ctx.root, tokens, count, draw=draw, logits=logits)
        return nodes, state, ctx.cache

    def drawn(keys, ctx: base.Context, laws: Array) -> Array:
        """Draw a token int32[B, W] from each law, by `draw`."""
        if draw != base.COUPLED:
            return child_sampling.candidates(draw, keys, laws, 1, laws[:, 0])[..., 0]
        positions = ctx.length[:, None] + index
        noise = jax.vmap(ctx.noise, in_axes=1, out_axes=1)(positions)
        return vocab.gumbel_argmax(laws, noise)

    def observe(ctx: base.Context, state: base.State, outcome: base.Outcome):
        if outcome.is_prompt:
            return state
        if outcome.is_pause:  # the laws are of positions that have passed
            known = jnp.where(outcome.active, -1, state.row.known)
            return base.State(Window(state.row.laws, known))
        # Node i's law is that of the position after it; the token there is committed.
        verified = (outcome.tree.kind == base.CANDIDATE).sum(1, dtype=jnp.int32) - 1
        after = outcome.verdict.count[:, None] + 1 + index
        after = jnp.minimum(after, verified[:, None])
        assert outcome.warped is not None  # of a round
        laws = jnp.take_along_axis(outcome.warped, after[..., None], 1, mode="clip")
        laws = jnp.where(outcome.active[:, None, None], laws, state.row.laws)
        known = verified - outcome.verdict.count
        return base.State(
            Window(laws, jnp.where(outcome.active, known, state.row.known))
        )

    return base.Drafter(begin, draft, observe, window + 1, window, pauses=True)
