"""Plain decoding: the tree is its root alone (baseline of every speed-up).

Cost per call: one target call of one node a token.
"""

from decoding import base, tree
from decoding.catalogue import Card

CARD = Card(
    paper="baseline: autoregressive decoding", guarantee=base.LAW, family="baseline"
)


def drafter() -> base.Drafter:
    """Draft nothing; each call gives one token."""

    def init(ctx: base.Context) -> base.State:
        return base.State()

    def draft(key, ctx: base.Context, state: base.State):
        return tree.root_only(ctx.root), state, ctx.cache

    def observe(ctx: base.Context, state: base.State, outcome: base.Outcome):
        return state

    return base.Drafter(init, draft, observe, nodes=1, depth=0)
