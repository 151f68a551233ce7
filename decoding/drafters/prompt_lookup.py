"""Prompt lookup: draft the tokens that followed an earlier match of the last tokens.

Saxena, *Prompt Lookup Decoding*, 2023, github.com/apoorvumang/prompt-lookup-decoding;
no paper; Spec-Bench (Xia et al., 2024, arXiv 2401.07851) measures it. With the text
t_1 .. t_n,

    m      = the greatest m <= n_max for which t_{n-m+1} .. t_n occurs earlier
    j      = the end of its first such occurrence
    draft  = t_{j+1} .. t_{min(j+k, n)}

n → `ctx.length`; m, j → the maximum of `suffix_match.suffix_matches` and its place; k →
`k`. The text is prompt and generated tokens alike; it is searched anew each round, on
the device.

Deviations from the original: it needs all k tokens of the continuation inside the text
and so loses matches near the end; here the continuation is clamped to the text. It
searches one text; here every row of the batch. `latest` takes the last occurrence, as
newer engines do.

Cost per call: n_max comparisons of [B, T] integers; no model call.
"""

import jax.numpy as jnp

from decoding import base, tree
from decoding.catalogue import Card
from decoding.text_lookup import suffix_match
from models.errors import MethodError

CARD = Card(
    paper="Prompt lookup decoding, github.com/apoorvumang/prompt-lookup-decoding",
    guarantee=base.LAW,
    family="training-free",
    examples={"k": 4},
    sources=("saxena2023prompt",),
)


def drafter(n_max: int = 3, k: int = 10, latest: bool = False) -> base.Drafter:
    """Look up at most `n_max` tokens and draft at most `k`; no state."""
    if n_max < 1:
        raise MethodError(f"n_max={n_max}: look up at least 1 token")
    if k < 1:
        raise MethodError(f"k={k}: propose at least 1 token, or use drafters/plain")

    def init(ctx: base.Context) -> base.State:
        return base.State()

    def draft(keys, ctx: base.Context, state: base.State):
        lengths = suffix_match.suffix_matches(ctx.tokens, ctx.length, n_max)
        if latest:
            end = lengths.shape[1] - 1 - jnp.argmax(lengths[:, ::-1], 1)
        else:
            end = jnp.argmax(lengths, 1)  # the first of the longest
        tokens, count = suffix_match.continuation(ctx.tokens, ctx.length, end, k)
        count = jnp.where(lengths.max(1) > 0, count, 0)
        return tree.chain(ctx.root, tokens, count), state, ctx.cache

    def observe(ctx: base.Context, state: base.State, outcome: base.Outcome):
        return state

    return base.Drafter(
        init, draft, observe, nodes=k + 1, depth=k, pauses=True, reads_text=True
    )
