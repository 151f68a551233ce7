"""DeAL: beams ranked by likelihood and the reward of a look-ahead.

Huang, Sengupta, Bonadiman, Lai, Gupta, Pappas, Mansour, Kirchhoff, Roth, *DeAL:
Decoding-time Alignment for Large Language Models*, 2025, arXiv 2402.06147, section 3.
Of each of K beams the k best tokens are candidates. Each is continued greedily by l
tokens, to a text y' that the reward h values, and

    c(y) = log p(y) + alpha h(y')

K -> width; k -> top; l -> lookahead; alpha -> alpha; h -> generate(reward=...). As in
`beam`, the best K that did not end go on, ended ones of rank below K are finished, and
K finished texts end the search. `rank="reward"` ranks by h alone.

A reconstruction: the paper's pages were read in part, and no official code was found.
Deviations: none known. Cost: K k nodes in l rounds, and two rounds more, a token.
"""

import math

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array, lax

from decoding import base, vocab
from decoding.catalogue import Card
from decoding.hypotheses import beams, nodes, rollout
from decoding.hypotheses import pool as pools
from decoding.hypotheses.nodes import Select, Selection, Texts, View
from decoding.hypotheses.pool import NONE
from decoding.hypotheses.rollout import Rollout
from models.errors import MethodError

CARD = Card(
    paper="DeAL, arXiv 2402.06147",
    guarantee=base.LOSSY,
    family="look-ahead",
    needs=("ends",),
    data=("alpha",),
    examples={"width": 2, "top": 3, "lookahead": 2},
    sources=("huang2025deal",),
)


@struct.dataclass
class Row:
    alpha: Array  # float32[]
    step: Array  # int32[]: 0: candidates are to be chosen
    sums: Array  # float32[K]: log-probability of the beams; NONE: no beam
    roll: Rollout  # leaves [K k]
    token: Array  # int32[K k]: the candidates
    given: Array  # float32[K k]: their beams' sums with them


def select(
    ends: int,
    width: int = 1,
    top: int = 10,
    lookahead: int = 32,
    alpha: float = 1.0,
    rank: str = "sum",
) -> Select:
    """Search by beams with a reward.

    Args:
        ends: how many tokens end a text.
        width: beams, and finished texts that are kept.
        top: candidates of each beam.
        lookahead: tokens of a continuation behind a candidate.
        alpha: weight of the reward; 0 is beam search of the sums.
        rank: "sum" or "reward".
    """
    if width < 1 or top < 1 or lookahead < 0:
        raise MethodError(
            f"width={width}, top={top}, lookahead={lookahead}: use at least 1, 1 and 0"
        )
    if not math.isfinite(alpha):
        raise MethodError(f"alpha={alpha}: use a finite number")
    if rank not in ("sum", "reward"):
        raise MethodError(f'rank={rank!r}: use "sum" or "reward"')
    size = width * top
    parents = jnp.repeat(jnp.arange(width), top)

    def init(params: base.Params, tokens: int) -> base.State:
        sums = jnp.full(width, NONE).at[0].set(0.0)
        zero = jnp.zeros(size, jnp.int32)
        roll = rollout.fresh(zero > 0)
        row = Row(jnp.float32(alpha), zero[0], sums, roll, zero, jnp.zeros(size))
        return base.State(row)

    def choose(key: Array, state: base.State, view: View) -> tuple:
        row = state.row
        begins = row.step == 0
        logp = view.logits
        best, tokens = (x.reshape(-1) for x in nodes.best(logp[:width], top))
        live = (view.lanes[:width] >= 0) & (row.sums > NONE / 2)
        fresh = rollout.fresh(live[parents] & (best > -jnp.inf))
        before = jax.tree.map(lambda a, b: jnp.where(begins, a, b), fresh, row.roll)
        first = jnp.where(begins, tokens, row.token)
        sums = jnp.where(begins, row.sums[parents] + best, row.given)
        lane = jnp.where(begins, parents, width + jnp.arange(size))
        token = jnp.where(begins, tokens, vocab.argmax(logp)[lane])
        given = logp[lane, token]
        further = jnp.broadcast_to(row.step < lookahead, (size,))
        # After the last token the texts are asked for, and their worths are awaited.
        waits = ~begins & ~row.roll.live.any()
        roll, runs = rollout.grown(view, before, lane, token, given, further)
        ahead = rollout.going_on(view, lane, token, runs, width)
        asks = ~waits & ~roll.live.any()
        none = jnp.full(size, -1, jnp.int32)
        ask = Texts(jnp.where(asks, roll.node, none), jnp.where(asks, roll.last, none))
        chosen, kept = ranked(row, view, sums, first)
        out = jax.tree.map(lambda a, b: jnp.where(waits, a, b), chosen, ahead)
        after = Row(
            row.alpha,
            jnp.where(waits, 0, row.step + 1),
            jnp.where(waits, kept, row.sums),
            roll,
            first,
            sums,
        )
        return out._replace(ask=ask), base.State(after, state.shared)

    def ranked(row: Row, view: View, sums: Array, token: Array) -> tuple:
        """Rank the candidates; return what goes on, and its sums."""
        there = (row.roll.node >= 0) & ~jnp.isnan(view.values)
        worth = jnp.where(there, view.values, 0.0)
        score = row.alpha * worth + (sums if rank == "sum" else 0.0)
        score = jnp.where(there, score, NONE)
        count = min(max(2, 1 + ends) * width, size)
        value, at = lax.top_k(score, count)
        lane, token, sums = parents[at], token[at], sums[at]
        there = value > NONE / 2
        ended = view.ends(lane, token) & there
        enters = ended & (jnp.arange(count) < width)
        new = beams.finished(view, lane, token, value, enters)
        pool = pools.merged(view.pool, new)
        best, order = lax.top_k(jnp.where(there & ~ended, value, NONE), width)
        goes = best > NONE / 2
        more = size - width
        leaf = jnp.pad(goes, (0, more))
        run = jnp.full(width + size, -1).at[:width].set(view.ids(leaf)[:width])
        place = jnp.pad(order, (0, more))
        done = pool.full | ~goes.any()
        chosen = Selection(lane[place], token[place], leaf, run, pool, done)
        return chosen, jnp.where(goes, sums[order], NONE)

    return Select(
        *(init, choose, width + size, size, width, lambda new: new * (lookahead + 2)),
        domain="logprobs",
        asks=size,
        rewarded=True,
    )
