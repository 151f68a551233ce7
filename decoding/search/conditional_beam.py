"""Conditional beam search: beams of texts that a classifier takes for good ones.

Yoshida, Goyal, Gimpel, *MAP's Not Dead Yet: Uncovering True Language Model Modes by
Conditioning Away Degeneracy*, 2024, arXiv 2311.08817, section 5. With a the attribute
that a text should have, and a classifier that reads beginnings,

    score(y_1 .. y_t) = log p(y_1 .. y_t) + log P(a | y_1 .. y_t)

Of the K best beams the 2 K best next tokens are run, an end of the text too. The
classifier reads them, and of these the K best go on; those that ended are finished, and
a full pool ends the search. K -> width. P(a | .) is the sigmoid of the reward's value:
generate(reward=...), a reward with a value for every node, such as
`rewards/value_head`.

Deviations: candidates are the 2 K best by likelihood; how many the paper scores was not
found. Cost: 2 K nodes a round, and a top-k over V for each of K.
"""

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
    paper="Conditional beam search, arXiv 2311.08817",
    guarantee=base.LOSSY,
    family="beams",
    data=("weight",),
    examples={"width": 2},
    sources=("yoshida2024map",),
)


@struct.dataclass
class Row:
    weight: Array  # float32[]
    sums: Array  # float32[2 K]: log-probability of the candidates; NONE: none


def select(width: int = 4, weight: float = 1.0) -> Select:
    """Search by beams under a classifier.

    Args:
        width: beams, and finished texts that are kept.
        weight: of the classifier's log-probability; 0 is beam search of the sums.
    """
    if width < 1:
        raise MethodError(f"width={width}: use at least 1")
    if not 0 <= weight < float("inf"):
        raise MethodError(f"weight={weight}: use a finite number, 0 or more")
    count = 2 * width

    def init(params: base.Params, size: int) -> base.State:
        sums = jnp.full(count, NONE).at[0].set(0.0)
        return base.State(Row(jnp.float32(weight), sums))

    def choose(key: Array, state: base.State, view: View) -> tuple:
        row = state.row
        there = (view.lanes >= 0) & (row.sums > NONE / 2)
        good = jax.nn.log_sigmoid(view.node_values)
        # The prompt is no candidate: nothing was chosen yet.
        good = jnp.where(view.round == 0, 0.0, good)
        score = jnp.where(there, row.sums + row.weight * good, NONE)
        best, lane = lax.top_k(score, width)
        node = view.lanes[lane]
        exists = best > NONE / 2
        over = exists & view.nodes.ended[jnp.maximum(node, 0)]
        text = Pool(
            jnp.where(over, node, -1),
            jnp.full(width, -1, jnp.int32),
            jnp.zeros(width),
            jnp.where(over, best, NONE),
        )
        pool = pools.merged(view.pool, text)
        sums = jnp.where(exists & ~over, row.sums[lane], NONE)[:, None]
        sums = jnp.maximum(sums + view.logits[lane], 2 * NONE)
        most = min(count, sums.size)
        at, token, new = beams.candidates(None, sums, most)
        pad = lambda x, value: jnp.pad(x, (0, count - most), constant_values=value)
        at, token, new = pad(at, 0), pad(token, 0), pad(new, NONE)
        done = pool.full | ~(exists & ~over).any()
        goes = (new > NONE / 2) & ~done
        chosen = Selection(lane[at], token, goes, view.ids(goes), pool, done)
        after = Row(row.weight, jnp.where(goes, new, NONE))
        return chosen, base.State(after, state.shared)

    return Select(
        *(init, choose, count, count, width, lambda new: new + 1),
        domain="logprobs",
        rewarded=True,
        valued=True,
    )
