"""GeDi: two small class-conditional models say which tokens are of the wanted class.

Krause, Gotmare, McCann, Keskar, Joty, Socher, Rajani, *GeDi: Generative Discriminator
Guided Sequence Generation*, 2021, arXiv 2009.06367, section 4 and appendix A. With the
streams' laws p_c of c = desired, anti, the sums R_c = log p_c(x_1 .. x_t) over the
generated text and its length T with the next token,

    P(desired | x, v) = softmax_c( (R_c + log p_c(v)) / T * scale + bias_c )[desired]
    z'_v = log P_v + omega log P(desired | x, v)
    keep the fewest tokens of greatest P(desired) that have 1 - filter_p of the mass of
    softmax(z'), and all with P(desired) >= target_p

omega -> omega; bias: `class_bias` for the desired class, 0 for the other. A repetition
penalty, 1.2 in the official script, is `repetition_penalty` beside it.

Deviations: R and T begin after the prompt, since no transform sees the streams' laws of
it; in the official code they begin after the class's token. Dropped tokens have -inf
(there 10000 less). In a draft, which has no streams, the logits stay unchanged and R
stays. Cost: some 40 passes over V, and a call of both small models on the block.
"""

import math

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array

from decoding import base, vocab
from decoding.catalogue import Card
from models.errors import MethodError

CARD = Card(
    paper="GeDi, arXiv 2009.06367",
    guarantee=base.LAW,
    family="guidance",
    data=("omega", "filter_p", "target_p", "class_bias", "scale"),
    sources=("krause2021gedi",),
)


@struct.dataclass
class Row:
    omega: Array  # float32[]
    filter_p: Array  # float32[]
    target_p: Array  # float32[]
    class_bias: Array  # float32[]
    scale: Array  # float32[]
    classes: Array  # float32[2]: log-probability of the generated text, desired first
    count: Array  # int32[]: generated tokens


def transform(
    omega: float = 30.0,
    filter_p: float = 0.8,
    target_p: float = 0.8,
    class_bias: float = 0.0,
    scale: float = 1.0,
    desired: str = "desired",
    anti: str = "anti",
) -> base.LogitsTransform:
    """Guide the target by two class-conditional models.

    Args:
        omega: weight of the class's log-probability, at least 0.
        filter_p: mass of least desired tokens to drop, in [0, 1]; 0 drops none.
        target_p: tokens of this class probability stay, in [0, 1].
        class_bias: added to the desired class (2 where the script detoxifies).
        scale: of the class logits; a trained GeDi model has one.
        desired: name of the stream of the wanted class.
        anti: name of the stream of the other class.
    """
    numbers = (omega, class_bias, scale)
    if not all(math.isfinite(x) for x in numbers) or omega < 0:
        raise MethodError(
            f"omega={omega}, class_bias={class_bias}, scale={scale}: use finite "
            "numbers, omega 0 or more (the paper's is 30)"
        )
    for name, value in (("filter_p", filter_p), ("target_p", target_p)):
        if not 0 <= value <= 1:
            raise MethodError(f"{name}={value} is outside [0, 1] (the paper's is 0.8)")

    def init(tokens: Array, length: Array) -> base.State:
        row = Row(
            omega=jnp.float32(omega),
            filter_p=jnp.float32(filter_p),
            target_p=jnp.float32(target_p),
            class_bias=jnp.float32(class_bias),
            scale=jnp.float32(scale),
            classes=jnp.zeros(2, jnp.float32),
            count=jnp.int32(0),
        )
        return base.State(row)

    def laws(aux: dict[str, Array]) -> Array:
        return vocab.log_softmax(jnp.stack([aux[desired], aux[anti]]))

    def apply(state: base.State, logits: Array, aux: dict[str, Array]) -> Array:
        if desired not in aux or anti not in aux:
            return logits
        row = state.row
        # A token that neither class holds possible tells the classes nothing.
        sums = jnp.maximum(row.classes[:, None] + laws(aux), -1e30)
        sums = sums / (row.count + 1) * row.scale
        bias = jnp.stack([row.class_bias, jnp.zeros_like(row.class_bias)])
        logp = jax.nn.log_softmax(sums + bias[:, None], 0)[0]
        logp = jnp.maximum(logp, -1e30)
        mixed = vocab.log_softmax(logits) + row.omega * logp
        chosen = vocab.mass_mask(logp, vocab.softmax(mixed), 1 - row.filter_p)
        return vocab.keep(mixed, chosen | (logp >= jnp.log(row.target_p)))

    def advance(
        state: base.State, token: Array, logits: Array, aux: dict[str, Array]
    ) -> base.State:
        row = state.row
        classes = row.classes
        if desired in aux and anti in aux:
            step = vocab.at(laws(aux), jnp.broadcast_to(token, (2,)))
            classes = jnp.maximum(classes + step, -1e30)
        return base.State(row.replace(classes=classes, count=row.count + 1))

    return base.LogitsTransform(init, apply, advance, streams=(desired, anti))
