"""Beam search: the best `width` beginnings go on, the best finished texts are kept.

Graves, *Sequence Transduction with Recurrent Neural Networks*, 2012, arXiv 1211.3711,
section 3, with the rules of HF transformers 4.57. With the K beams' sums s, a round
takes the best max(2, 1 + E) K of the K V sums s_k + log p_k(v), E the number of tokens
that end a text. Then

    ended ones of rank below K enter the pool of K texts, with s / |y|^alpha
    the best K that did not end go on
    a full pool ends the search: by early_stopping
        True: at once
        False: when its worst is at least the best running sum / |y|^alpha
        "never": the same, with the limit for |y| where alpha > 0

K -> width; alpha -> length_penalty; |y| counts generated tokens, the last included; at
the limit every candidate has ended. The transform receives log-probabilities, and its
values are summed as they are.

Options: `normaliser="gnmt"` divides by ((5 + |y|) / 6)^alpha, as Google's translation
system does. `pool_rule="any"` lets every ended candidate into the pool, as t5x does.
`sample=True` draws the candidates without replacement from the law of the sums, by
Gumbel top-k (Kool, van Hoof, Welling, 2019, arXiv 1903.06059); as in HF transformers
the best K of the drawn go on, so that texts are no samples of the target's law.

Deviations: none; of equal candidates the one of the lower beam, then of the lower id.
Cost: a node a beam and round, and a top-k over V for each.
"""

import jax.numpy as jnp
from flax import struct
from jax import Array, lax

from decoding import base
from decoding.catalogue import Card
from decoding.hypotheses import beams
from decoding.hypotheses import pool as pools
from decoding.hypotheses.nodes import Select, Selection, View
from decoding.hypotheses.pool import NONE
from models.errors import MethodError

CARD = Card(
    paper="Beam search, arXiv 1211.3711",
    guarantee=base.LOSSY,
    family="beams",
    needs=("ends",),
    data=("length_penalty",),
    sources=("graves2012sequence", "kool2019stochastic"),
)


@struct.dataclass
class Row:
    alpha: Array  # float32[]
    sums: Array  # float32[K]: NONE: no beam


def select(
    ends: int,
    width: int = 4,
    length_penalty: float = 1.0,
    early_stopping: bool | str = False,
    normaliser: str = "length",
    pool_rule: str = "best",
    sample: bool = False,
) -> Select:
    """Search by beams.

    Args:
        ends: how many tokens end a text.
        width: beams, and finished texts that are kept.
        length_penalty: above 0 favours long texts, below 0 short ones.
        early_stopping: when a full pool ends the search: True, False or "never".
        normaliser: "length" or "gnmt".
        pool_rule: "best": ended candidates of rank below `width` enter the pool; "any":
            all of them.
        sample: draw the candidates.
    """
    beams.check(width, length_penalty, early_stopping)
    for name, value, known in (
        ("normaliser", normaliser, ("length", "gnmt")),
        ("pool_rule", pool_rule, ("best", "any")),
    ):
        if value not in known:
            raise MethodError(f"{name}={value!r}: use one of {known}")
    gnmt = normaliser == "gnmt"

    def init(params: base.Params, size: int) -> base.State:
        sums = jnp.full(width, NONE).at[0].set(0.0)
        return base.State(Row(jnp.float32(length_penalty), sums))

    def choose(key: Array, state: base.State, view: View) -> tuple:
        alpha, size = state.row.alpha, view.logits.shape[-1]
        count = min(max(2, 1 + ends) * width, width * size)
        live = view.lanes >= 0
        sums = jnp.where(live, state.row.sums, NONE)[:, None] + view.logits
        sums = jnp.maximum(sums, 2 * NONE)  # a forbidden token is no NaN in a sum
        lane, token, score = beams.candidates(key if sample else None, sums, count)
        there = score > NONE / 2
        length = view.depth.max() + 1
        ended = view.ends(lane, token) & there
        rank = jnp.arange(count)
        enters = ended if pool_rule == "any" else ended & (rank < width)
        value = beams.normalised(score, length, alpha, gnmt)
        new = beams.finished(view, lane, token, value, enters)
        pool = pools.merged(view.pool, new)
        running = jnp.where(there & ~ended, score, NONE)
        best, at = lax.top_k(running, width)
        goes = best > NONE / 2
        most = beams.reach(view, alpha, early_stopping)
        hope = beams.normalised(best[0], most, alpha, gnmt)
        done = beams.ends(pool, hope, early_stopping) | ~goes.any()
        chosen = Selection(lane[at], token[at], goes, view.ids(goes), pool, done)
        return chosen, base.State(Row(alpha, jnp.where(goes, best, NONE)), state.shared)

    return Select(init, choose, width, width, width, domain="logprobs", samples=sample)
