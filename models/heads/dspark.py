"""DSpark's heads on a block: a Markov correction, and the confidence of a draft.

Cheng, Yu, Shao, Li, Xiong et al., *DSpark: Confidence-Scheduled Speculative Decoding
with Semi-Autoregressive Generation*, 2026, arXiv 2607.05147. With h_k the state of slot
k of a shifted block (`models/heads/dflash.py`), U_k = W_lm h_k, x the token before the
slot's (the anchor for k = 0) and e = W_1 x of width r,

    vanilla:  law = softmax(U_k + W_2 e)
    gated:    law = softmax(U_k + W_2 (sigmoid(G [h_k ; e] + b) e))
    rnn:      [g ; c ; o] = J [s ; e ; h_k] + b,  law = softmax(U_k + W_2 tanh(o)),
              s' = sigmoid(g) s + (1 - sigmoid(g)) tanh(c),  s = 0 at the anchor
    confidence:  c_k = sigmoid(w [h_k ; e] + b), that the draft is accepted where those
                 before it are

W_1 → `first` [V, r]; W_2 → `second` [r, V]; G, b → `gate` [D + r, r], `gate_bias`; J,
b → `joint` [2 r + D, 3 r], `joint_bias`; w, b → `confidence` [D + r],
`confidence_bias` [].

Deviations: W_2 begins at zero, so that an untrained head is the block's.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from models.errors import ConfigError
from models.heads import dflash
from models.heads.modules import decoder_layer, head_config
from models.heads.modules.block_head import Head, Slot
from models.heads.modules.decoder_layer import Params

FORMS = ("vanilla", "gated", "rnn")


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class HeadConfig:
    markov: str = "vanilla"  # one of FORMS
    confidence: bool = True  # whether there is a confidence head


def by_keys(params: Params) -> HeadConfig:
    """Derive the config of params that carry none."""
    form = "rnn" if "joint" in params else "gated" if "gate" in params else "vanilla"
    return HeadConfig(form, "confidence" in params)


def config_of(params: Params) -> HeadConfig:
    return head_config.of(params, by_keys)


def init(
    key: Array,
    target: Any,
    markov: str = "vanilla",
    rank: int = 256,
    confidence: bool = True,
    shifted: bool = True,
    block: int = 7,
    **fields: Any,
) -> Params:
    """Draw float32 params.

    Args:
        key: of the draw.
        target: the target's config.
        markov: one of FORMS.
        rank: r.
        confidence: whether there is a confidence head.
        shifted: slot k is of the token after it.
        block: slots.
        fields: of `dflash.backbone`.
    """
    if markov not in FORMS or rank < 1:
        raise ConfigError(
            f"markov={markov!r}, rank={rank}: use one of {FORMS}, and a rank from 1 on"
        )
    keys = jax.random.split(key, 4)
    dim, vocab = target.d_model, target.vocab_size
    backbone = dflash.backbone(keys[0], target, shifted=shifted, block=block, **fields)
    params: Params = {
        "backbone": backbone,
        "first": decoder_layer.normal(keys[1], (vocab, rank), rank),
        "second": jnp.zeros((rank, vocab)),
        head_config.CONFIG: HeadConfig(markov, confidence),
    }
    if markov == "gated":
        shape = (dim + rank, rank)
        params["gate"] = decoder_layer.normal(keys[2], shape, dim + rank)
        params["gate_bias"] = jnp.zeros(rank)
    if markov == "rnn":
        width = 2 * rank + dim
        params["joint"] = decoder_layer.normal(keys[2], (width, 3 * rank), width)
        params["joint_bias"] = jnp.zeros(3 * rank)
    if confidence:
        params["confidence"] = jnp.zeros(dim + rank)
        params["confidence_bias"] = jnp.zeros(())
    return params


def start(params: Params, shape: tuple[int, ...]) -> Any:
    """Return s before the first slot, [..., r]; () where there is none."""
    if config_of(params).markov != "rnn":
        return ()
    return jnp.zeros((*shape, params["first"].shape[1]), params["first"].dtype)


def step(
    params: Params, carry: Any, tokens: Array, embedded: Array, slot: Slot
) -> tuple[Any, Array]:
    """Read the tokens before a slot: return s', and what W_2 multiplies [..., r]."""
    e = params["first"][tokens]
    states = jnp.broadcast_to(slot.states, (*e.shape[:-1], slot.states.shape[-1]))
    form = config_of(params).markov
    if form == "vanilla":
        return (), e
    if form == "gated":
        gate = jnp.concatenate([states, e], -1) @ params["gate"]
        return (), jax.nn.sigmoid(gate + params["gate_bias"]) * e
    x = jnp.concatenate([carry, e, states], -1) @ params["joint"] + params["joint_bias"]
    gate, candidate, out = jnp.split(x, 3, -1)
    gate = jax.nn.sigmoid(gate)
    return gate * carry + (1.0 - gate) * jnp.tanh(candidate), jnp.tanh(out)


def logits(params: Params, slot: Slot, laws: Array, summary: Array, head: Any) -> Array:
    """Compute logits [..., V] of a slot after the tokens that `summary` is of."""
    return laws + (summary @ params["second"]).astype(jnp.float32)


def watched(params: Params, tokens: Array, slot: Slot) -> Array:
    """Join what the confidence head reads: [h_k ; e] [..., D + r]."""
    e = params["first"][tokens]
    states = jnp.broadcast_to(slot.states, (*e.shape[:-1], slot.states.shape[-1]))
    return jnp.concatenate([states, e], -1)


def rated(params: Params, x: Array) -> Array:
    """Compute the logit of c_k, float32[...], of `watched` [..., D + r]."""
    return (x @ params["confidence"] + params["confidence_bias"]).astype(jnp.float32)


HEAD = Head(
    "DSpark",
    start,
    step,
    logits,
    memory=lambda params: "joint" in params,
    watched=watched,
)
