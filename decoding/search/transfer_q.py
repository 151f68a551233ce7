"""Transfer Q*: tokens weighted by the reward of a text that another model finishes.

Chakraborty, Ghosal, Yin, Manocha, Wang, Bedi, Huang, *Transfer Q-star: Principled
Decoding for LLM Alignment*, 2024, arXiv 2405.20495, section 4. Of the k best tokens z
after the text s,

    p(z | s) ~ p_target(z | s) exp(TQ(s, z) / alpha),
    TQ(s, z) = r of the text that the baseline model writes greedily behind s, z

k -> top; alpha -> alpha; r -> generate(reward=...). The baseline, a model that is
aligned already, is the stream `baseline`: generate(streams={"baseline": ...}); without
it the target writes the texts. They have `lookahead` tokens (20 in the official code).
At temperature 0 the best token is taken, as in the official code.

Deviations: TQ is an expectation under the baseline, of which this is one greedy text,
as in the official code. The indirect transfer, which corrects for the baseline's own
reward, is not there.
Cost: k nodes in `lookahead` rounds, and two rounds more, a token.
"""

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array

from decoding import base, vocab
from decoding.catalogue import Card
from decoding.hypotheses import nodes, rollout
from decoding.hypotheses.nodes import Select, Texts, View
from decoding.hypotheses.rollout import Rollout
from models.errors import MethodError

CARD = Card(
    paper="Transfer Q*, arXiv 2405.20495",
    guarantee=base.LOSSY,
    family="look-ahead",
    data=("alpha",),
    examples={"top": 3, "lookahead": 2},
    sources=("chakraborty2024transfer",),
)


@struct.dataclass
class Row:
    alpha: Array  # float32[]
    step: Array  # int32[]: 0: candidates are to be chosen
    roll: Rollout  # leaves [k]
    token: Array  # int32[k]: the candidates
    total: Array  # float32[]: log-probability of the text under the target


def select(top: int = 10, lookahead: int = 20, alpha: float = 1.0) -> Select:
    """Search by the rewards of look-aheads.

    Args:
        top: tokens to choose from.
        lookahead: tokens of a continuation behind each.
        alpha: weight of the target's law against the reward.
    """
    if top < 1 or lookahead < 0:
        raise MethodError(
            f"top={top}, lookahead={lookahead}: use at least 1 and at least 0"
        )
    if not alpha > 0:
        raise MethodError(f"alpha={alpha}: use a number above 0 (inf: no reward)")

    def init(params: base.Params, size: int) -> base.State:
        zero = jnp.zeros(top, jnp.int32)
        roll = rollout.fresh(zero > 0)
        row = Row(jnp.float32(alpha), zero[0], roll, zero, jnp.float32(0))
        return base.State(row)

    def choose(key: Array, state: base.State, view: View) -> tuple:
        row = state.row
        begins = row.step == 0
        logp = view.logits
        best, tokens = nodes.best(logp[0], top)
        fresh = rollout.fresh(best > -jnp.inf)
        before = jax.tree.map(lambda a, b: jnp.where(begins, a, b), fresh, row.roll)
        first = jnp.where(begins, tokens, row.token)
        lane = jnp.where(begins, 0, 1 + jnp.arange(top))
        writer = view.aux.get("baseline", view.raw)
        token = jnp.where(begins, tokens, vocab.argmax(writer)[lane])
        further = jnp.broadcast_to(row.step < lookahead, (top,))
        # After the last token the texts are asked for, and their worths are awaited.
        waits = ~begins & ~row.roll.live.any()
        given = logp[lane, token]
        roll, runs = rollout.grown(view, before, lane, token, given, further)
        ahead = rollout.going_on(view, lane, token, runs, 1)
        asks = ~waits & ~roll.live.any()
        none = jnp.full(top, -1, jnp.int32)
        ask = Texts(jnp.where(asks, roll.node, none), jnp.where(asks, roll.last, none))
        # The best tokens of the lane that waits are the candidates, in their order.
        weight = best + jnp.where(jnp.isnan(view.values), 0, view.values) / row.alpha
        noise = view.noise(jnp.zeros(1 + top, jnp.int32))[0, first]
        weight = jnp.where(best > -jnp.inf, weight + noise, -jnp.inf)
        chosen = first[jnp.argmax(weight)]
        total = row.total + view.raw[0, chosen]
        commit = rollout.written(view, jnp.int32(0), chosen, total, 1 + top, top)
        out = jax.tree.map(lambda a, b: jnp.where(waits, a, b), commit, ahead)
        after = Row(
            row.alpha,
            jnp.where(waits, 0, row.step + 1),
            roll,
            first,
            jnp.where(waits, total, row.total),
        )
        return out._replace(ask=ask), base.State(after, state.shared)

    return Select(
        *(init, choose, 1 + top, top, 1, lambda new: new * (lookahead + 2)),
        domain="logprobs",
        samples=True,
        asks=top,
        rewarded=True,
    )
