"""Momentum decoding: greedy, with a resistance against what the text already holds.

Lan, Su, Liu, Huang, Mao, *Momentum Decoding: Open-ended Text Generation As Graph
Exploration*, 2022, arXiv 2212.02175, section 3. Over the k best tokens,

    v = argmax P_v - alpha f(L_v)        k -> k; alpha -> alpha; f -> resistance

L_v is the length of the circuit in the text's graph that v would walk again, v
included: 0 for a token that does not occur, at most the last index of f. The prompt is
part of the graph. `apply` returns these values, and -inf outside the k best.

Deviations: f is the official code's of 5 December 2022, f(1..5) = 1, 3, 4, 5, 5; its
last commit has f = 0 up to 3, 5, then infinity, an ablation that was left in. Of equal
values the lowest id wins, there the more probable.
Cost: O(T) a token, a softmax and a top-k over V; 8 T bytes a row and a tree node.
"""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array

from decoding import base, vocab
from decoding.catalogue import Card
from decoding.text_lookup import repeat_lengths
from models.errors import MethodError

CARD = Card(
    paper="Momentum decoding, arXiv 2212.02175",
    guarantee=base.ARGMAX,
    family="penalty",
    data=("alpha", "k"),
    examples={"k": 4},
    sources=("lan2022momentum",),
)


@struct.dataclass
class Row:
    alpha: Array  # float32[]
    k: Array  # int32[]
    text: repeat_lengths.Repeats


@struct.dataclass
class Shared:
    resistance: Array  # float32[R]: f of a circuit's length; longer ones as the last


def transform(
    alpha: float = 0.2,
    k: int = 5,
    resistance: Sequence[float] = (0.0, 1.0, 3.0, 4.0, 5.0, 5.0),
) -> base.LogitsTransform:
    """Explore the text's graph greedily.

    Args:
        alpha: weight of the resistance, at least 0; 0 is greedy decoding.
        k: candidates.
        resistance: f(0), f(1), ...; `inf` forbids.
    """
    if not 0 <= alpha <= 1e6 or k != int(k) or k < 1:
        raise MethodError(
            f"alpha={alpha}, k={k}: use a weight of 0 or more (the paper's is 0.2) and "
            "a whole number of candidates (5)"
        )
    if len(resistance) < 2 or not min(resistance) >= 0:
        raise MethodError(
            f"resistance={tuple(resistance)}: give f(0), f(1), ... of at least 0"
        )
    table = np.minimum(np.asarray(resistance, np.float32), 1e9)

    def init(tokens: Array, length: Array) -> base.State:
        row = Row(
            jnp.float32(alpha), jnp.int32(k), repeat_lengths.begin(tokens, length)
        )
        return base.State(row, Shared(jnp.asarray(table)))

    def apply(state: base.State, logits: Array, aux: dict[str, Array]) -> Array:
        row, f = state.row, state.shared.resistance
        made = repeat_lengths.repeated(row.text, logits.shape[-1])
        cost = f[jnp.minimum(made, f.shape[0] - 1)]
        best = vocab.top_k_mask(logits, row.k) & (logits > -jnp.inf)
        return jnp.where(best, vocab.softmax(logits) - row.alpha * cost, -jnp.inf)

    def advance(
        state: base.State, token: Array, logits: Array, aux: dict[str, Array]
    ) -> base.State:
        text = repeat_lengths.advance(state.row.text, token)
        return base.State(state.row.replace(text=text), state.shared)

    return base.LogitsTransform(init, apply, advance)
