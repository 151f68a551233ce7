"""Diverse beam search: groups of beams, later ones pay for tokens of earlier ones.

Vijayakumar, Cogswell, Selvaraju, Sun, Lee, Crandall, Batra, *Diverse Beam Search:
Decoding Diverse Solutions from Neural Sequence Models*, 2016, arXiv 1610.02424, section
3, with Hamming diversity and the rules of HF transformers 4.46. The K beams are G
groups. In a round group g searches over

    s_k + log p_k(v) - lambda n_v        n_v: beams of groups before g that chose v now

K -> width; G -> groups; lambda -> diversity. The penalty stays in the sums. Each group
has a pool of K / G texts and stops by itself, as `beam` does but for two rules of that
release: "False" and "never" compare with the best candidate, ended or not, and at the
limit the running beams enter too. A group that stopped penalises nobody. The result is
the best of all pools.

Deviations: the penalty follows the transforms; in HF transformers it precedes them.
Cost: a node a beam and round, and a top-k over V for each.
"""

import math

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array, lax

from decoding import base
from decoding.catalogue import Card
from decoding.hypotheses import beams
from decoding.hypotheses import pool as pools
from decoding.hypotheses.nodes import Select, Selection, View
from decoding.hypotheses.pool import NONE, Pool
from models.errors import MethodError

CARD = Card(
    paper="Diverse beam search, arXiv 1610.02424",
    guarantee=base.LOSSY,
    family="beams",
    needs=("ends",),
    data=("diversity", "length_penalty"),
    sources=("vijayakumar2016diverse",),
)


@struct.dataclass
class Row:
    alpha: Array  # float32[]
    diversity: Array  # float32[]
    sums: Array  # float32[G, K / G]: NONE: no beam
    pools: Pool  # leaves [G, K / G]
    done: Array  # bool[G]


def select(
    ends: int,
    width: int = 4,
    groups: int = 4,
    diversity: float = 0.5,
    length_penalty: float = 1.0,
    early_stopping: bool | str = False,
) -> Select:
    """Search by groups of beams.

    Args:
        ends: how many tokens end a text.
        width: beams of all groups, and finished texts that are kept.
        groups: a divisor of `width`; as many are best in the paper.
        diversity: penalty for a token that an earlier group chose (paper: 0.2 to 0.8).
        length_penalty: as in `beam`.
        early_stopping: as in `beam`.
    """
    beams.check(width, length_penalty, early_stopping)
    if groups < 1 or width % groups:
        raise MethodError(
            f"groups={groups} of width={width}: use a number that divides the width"
        )
    if not 0 <= diversity < math.inf:
        raise MethodError(f"diversity={diversity}: use 0 (equal groups) or more")
    each = width // groups

    def init(params: base.Params, size: int) -> base.State:
        sums = jnp.full((groups, each), NONE).at[:, 0].set(0.0)
        stack = lambda x: jnp.broadcast_to(x, (groups, *x.shape))
        row = Row(
            jnp.float32(length_penalty),
            jnp.float32(diversity),
            sums,
            jax.tree.map(stack, pools.empty(each)),
            jnp.zeros(groups, bool),
        )
        return base.State(row)

    def choose(key: Array, state: base.State, view: View) -> tuple:
        row, size = state.row, view.logits.shape[-1]
        penalty, parts = jnp.zeros(size), []
        for g in range(groups):
            # In the first round all groups start from the one node there is.
            own = g * each + jnp.arange(each)
            lanes = jnp.where(view.round == 0, 0, own)
            part = one_group(row, g, view, lanes, row.diversity * penalty)
            tokens, goes = part[1], part[2]
            used = jnp.where(goes & ~row.done[g], tokens, size)
            penalty = penalty.at[used].add(1.0, mode="drop")
            parts.append(part)
        lane, token, goes, best, pool, done = jax.tree.map(
            lambda *x: jnp.stack(x), *parts
        )
        goes &= ~row.done[:, None]
        kept = jax.tree.map(
            lambda old, new: jnp.where(row.done[:, None], old, new), row.pools, pool
        )
        done |= row.done
        flat = jax.tree.map(lambda x: x.reshape(-1), kept)
        there = goes.reshape(-1)
        chosen = Selection(
            lane.reshape(-1),
            token.reshape(-1),
            there,
            view.ids(there),
            pools.merged(pools.empty(width), flat),
            done.all(),
        )
        sums = jnp.where(goes, best, NONE)
        return chosen, base.State(Row(row.alpha, row.diversity, sums, kept, done))

    def one_group(
        row: Row, g: int, view: View, lanes: Array, penalty: Array
    ) -> tuple[Array, Array, Array, Array, Pool, Array]:
        count = min(max(2, 1 + ends) * each, each * view.logits.shape[-1])
        live = view.lanes[lanes] >= 0
        sums = jnp.where(live, row.sums[g], NONE)[:, None]
        sums = jnp.maximum(sums + view.logits[lanes] - penalty, 2 * NONE)
        at, token, score = beams.candidates(None, sums, count)
        lane, there = lanes[at], score > NONE / 2
        length = view.depth.max() + 1
        ended = view.stops(lane, token) & there
        enters = ended & (jnp.arange(count) < each)
        running = jnp.where(there & ~ended, score, NONE)
        best, order = lax.top_k(running, each)
        goes = best > NONE / 2
        last = goes & (length >= view.limit)
        entering = jnp.concatenate([enters, last])
        pick = lambda x: jnp.concatenate([x, x[order]])
        value = beams.normalised(pick(score), length, row.alpha, False)
        pool = pools.merged(
            jax.tree.map(lambda x: x[g], row.pools),
            beams.finished(view, pick(lane), pick(token), value, entering),
        )
        most = beams.reach(view, row.alpha, early_stopping)
        hope = beams.normalised(score[0], most, row.alpha, False)
        done = beams.ends(pool, hope, early_stopping)
        done |= last.any() | ~goes.any()
        return lane[order], token[order], goes, best, pool, done

    return Select(init, choose, width, width, width, domain="logprobs")
