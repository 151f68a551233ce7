"""Contrastive search: of the k likeliest tokens the one least like the text so far.

Su, Lan, Wang, Yogatama, Kong, Collier, *A Contrastive Framework for Neural Text
Generation*, 2022, arXiv 2202.06417, section 4. Over the k best tokens,

    v = argmax (1 - alpha) p(v) - alpha max_j cos(h_v, h_j)

h_v is the last layer's state after its norm, where the target has read v; j runs over
all tokens before it, the prompt's included. k -> k; alpha -> alpha.

Deviations: none. Cost: k nodes a token, a top-k over V, and T cosines for each.
"""

import jax.numpy as jnp
from flax import struct
from jax import Array

from decoding import base, vocab
from decoding.catalogue import Card
from decoding.hypotheses import nodes
from decoding.hypotheses import pool as pools
from decoding.hypotheses.nodes import Select, Selection, View
from decoding.hypotheses.pool import Pool
from models.base import LanguageModel
from models.errors import MethodError

CARD = Card(
    paper="Contrastive search, arXiv 2202.06417",
    guarantee=base.LOSSY,
    family="degeneration",
    needs=("model",),
    data=("alpha",),
    sources=("su2022contrastive",),
)


@struct.dataclass
class Row:
    alpha: Array  # float32[]
    chances: Array  # float32[k]: probability of each lane's token
    states: Array  # float32[T, D]: of length 1
    count: Array  # int32[]: tokens whose states are kept
    total: Array  # float32[]: log-probability of the text


def select(model: LanguageModel, k: int = 8, alpha: float = 0.6) -> Select:
    """Search contrastively.

    Args:
        model: the target, for the width of its states.
        k: candidates (paper: 5 to 10; 8 in most experiments).
        alpha: weight of the likeness, in [0, 1]; 0 is greedy decoding.
    """
    if k != int(k) or k < 1:
        raise MethodError(f"k={k}: use a whole number of candidates, 1 or more")
    if not 0 <= alpha <= 1:
        raise MethodError(f"alpha={alpha} is outside [0, 1]; the paper's is 0.6")

    def init(params: base.Params, size: int) -> base.State:
        states = jnp.zeros((size, model.config.d_model))
        zero = jnp.float32(0)
        row = Row(jnp.float32(alpha), jnp.zeros(k), states, jnp.int32(0), zero)
        return base.State(row)

    def read(state: base.State, hidden: dict, count: Array) -> base.State:
        row = state.row
        index = jnp.arange(hidden["norm"].shape[0])
        at = jnp.where(index < count, row.count + index, row.states.shape[0])
        states = row.states.at[at].set(direction(hidden["norm"]), mode="drop")
        return base.State(row.replace(states=states, count=row.count + count))

    def choose(key: Array, state: base.State, view: View) -> tuple:
        row, seen = state.row, direction(view.hidden["norm"])
        live = jnp.arange(row.states.shape[0]) < row.count
        likeness = jnp.where(live, seen @ row.states.T, -jnp.inf).max(-1)
        score = (1 - row.alpha) * row.chances - row.alpha * likeness
        score = jnp.where(view.lanes >= 0, score, -jnp.inf)
        # In the first round there is the prompt's last token alone.
        lane = jnp.where(view.round == 0, 0, jnp.argmax(score)).astype(jnp.int32)
        node = view.lanes[lane]
        total = row.total + view.nodes.given[node]
        logits = view.logits[lane]
        _, tokens = nodes.best(logits, k)
        chances = vocab.softmax(logits)[tokens]
        done = view.nodes.ended[node]
        there = (jnp.arange(k) < logits.shape[-1]) & (chances > 0) & ~done
        ended = Pool(
            jnp.where(done, node, -1)[None],
            jnp.full(1, -1, jnp.int32),
            jnp.zeros(1),
            jnp.where(done, total, pools.NONE)[None],
        )
        chosen = Selection(
            jnp.full(k, lane),
            tokens,
            there,
            view.ids(there),
            pools.merged(view.pool, ended),
            done,
        )
        states = row.states.at[row.count].set(seen[lane], mode="drop")
        after = Row(row.alpha, chances, states, row.count + 1, total)
        return chosen, base.State(after, state.shared)

    return Select(init, choose, k, k, 1, lambda new: new + 1, taps=("norm",), read=read)


def direction(states: Array) -> Array:
    """Scale states [..., D] to length 1, float32."""
    states = states.astype(jnp.float32)
    return states / jnp.maximum(jnp.linalg.norm(states, axis=-1, keepdims=True), 1e-12)
