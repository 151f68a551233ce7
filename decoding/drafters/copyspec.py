"""CopySpec: copy the block that followed an earlier match of the last gamma tokens.

Dumitru, Yang, Yadav, Surdeanu, *CopySpec: Accelerating LLMs with Speculative
Copy-and-Paste*, 2025, arXiv 2502.08923, section 3. With the text t_1 .. t_n,

    j      = the end of the first earlier occurrence of t_{n-gamma+1} .. t_n
    draft  = t_{j+1} .. t_{min(j+copy, n)};  nothing if there is no such j

n → `ctx.length`; gamma → `gamma`, the command line's default of the official code (its
function's is 5); copy → `copy`, the paper's block of 10.

Deviations from the paper: a comparison of all positions takes the place of the rolling
hash, so that no draft stems from a collision; there is no second drafter for the rounds
without a match; gamma stays as it is near the end of the text's budget. At temperature
> 0 the official code accepts a copied token only if its probability is 1; here the
verifier decides.

Cost per call: gamma comparisons of [B, T] integers; no model call.
"""

import jax.numpy as jnp

from decoding import base, tree
from decoding.catalogue import Card
from decoding.text_lookup import suffix_match
from models.errors import MethodError

CARD = Card(
    paper="CopySpec, arXiv 2502.08923",
    guarantee=base.LAW,
    family="training-free",
    examples={"gamma": 2, "copy": 4},
    sources=("dumitru2025copyspec",),
)


def drafter(gamma: int = 3, copy: int = 10) -> base.Drafter:
    """Match exactly `gamma` tokens and copy at most `copy`; no state."""
    if gamma < 1:
        raise MethodError(f"gamma={gamma}: match at least 1 token")
    if copy < 1:
        raise MethodError(f"copy={copy}: copy at least 1 token, or use drafters/plain")

    def init(ctx: base.Context) -> base.State:
        return base.State()

    def draft(keys, ctx: base.Context, state: base.State):
        match = suffix_match.suffix_matches(ctx.tokens, ctx.length, gamma) == gamma
        end = jnp.argmax(match, 1)
        tokens, count = suffix_match.continuation(ctx.tokens, ctx.length, end, copy)
        count = jnp.where(match.any(1), count, 0)
        return tree.chain(ctx.root, tokens, count), state, ctx.cache

    def observe(ctx: base.Context, state: base.State, outcome: base.Outcome):
        return state

    return base.Drafter(
        init, draft, observe, nodes=copy + 1, depth=copy, pauses=True, reads_text=True
    )
