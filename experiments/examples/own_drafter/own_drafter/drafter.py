"""Own drafter: the tokens that followed the last occurrence of the last token.

With x_1 .. x_n the text and j < n the latest place with x_j = x_n:

    draft = x_{j+1} .. x_{j+length};  nothing without such a place

Deviations: none, it has no paper. Cost per call: one comparison of [B, T] integers.
"""

import jax.numpy as jnp

from decoding import base, tree
from decoding.catalogue import Card
from decoding.text_lookup import suffix_match
from models.errors import MethodError

CARD = Card(paper="an example of decodax", guarantee=base.LAW, family="training-free")


def drafter(length: int = 4) -> base.Drafter:
    """Draft at most `length` tokens a round, 1 or more."""
    if length < 1:
        raise MethodError(f"length={length}: draft at least one token")

    def init(ctx: base.Context) -> base.State:
        return base.State()

    def draft(keys, ctx: base.Context, state: base.State):
        places = jnp.arange(ctx.tokens.shape[1])
        before = places < ctx.length[:, None] - 1
        same = (ctx.tokens == ctx.root[:, None]) & before
        last = jnp.where(same, places, -1).max(1)
        tokens, count = suffix_match.continuation(
            ctx.tokens, ctx.length, jnp.maximum(last, 0), length
        )
        return (
            tree.chain(ctx.root, tokens, jnp.where(last < 0, 0, count)),
            state,
            ctx.cache,
        )

    def observe(ctx: base.Context, state: base.State, outcome: base.Outcome):
        return state

    return base.Drafter(init, draft, observe, nodes=length + 1, depth=length)
