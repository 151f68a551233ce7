"""Domino's head on a block: a GRU over the tokens before a slot corrects its law.

Huang, Zhang, Zhang, Lin, Xu, Zhang, *Domino: Decoupling Causal Modeling from
Autoregressive Drafting in Speculative Decoding*, 2026, arXiv 2605.29707. With h_k the
state of slot k of a block (`models/heads/dflash.py`), U_k = W_lm h_k and e the target's
embedding,

    s_k = GRU(s_{k-1}, e(token before slot k)),    s = 0 before the anchor
    law = softmax(U_k + B SiLU(A [h_k ; s_k])),    and softmax(U_k) in the first `pure`
                                                   slots

    GRU:  r = sigmoid(W_r x + R_r s),  z = sigmoid(W_z x + R_z s)
          n = tanh(W_n x + r (R_n s)),  s' = (1 - z) n + z s

W → `inputs` [D, 3, G], R → `recurrent` [G, 3, G], in the order r, z, n; A → `joint` [D
+ G, E]; B → `output` [E, V].

Deviations: B begins at zero, so that an untrained head is the block's.
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
from models.transformer.modules import product


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class HeadConfig:
    pure: int = head_config.unseen(1)  # slots that keep the block's law


def by_keys(params: Params) -> HeadConfig:
    """Derive the config of params that carry none."""
    return HeadConfig()


def config_of(params: Params) -> HeadConfig:
    return head_config.of(params, by_keys)


def init(
    key: Array,
    target: Any,
    width: int = 1024,
    rank: int = 256,
    pure: int = 1,
    shifted: bool = True,
    block: int = 16,
    **fields: Any,
) -> Params:
    """Draw float32 params.

    Args:
        key: of the draw.
        target: the target's config.
        width: G, of the GRU's state.
        rank: E.
        pure: slots that keep the block's law.
        shifted: slot k is of the token after it.
        block: slots.
        fields: of `dflash.backbone`.
    """
    if min(width, rank) < 1 or pure < 0:
        raise ConfigError(
            f"width={width}, rank={rank}, pure={pure}: use widths from 1 on, and 0 or "
            "more slots"
        )
    keys = jax.random.split(key, 4)
    dim = target.d_model
    backbone = dflash.backbone(keys[0], target, shifted=shifted, block=block, **fields)
    return {
        "backbone": backbone,
        "inputs": decoder_layer.normal(keys[1], (dim, 3, width), dim),
        "recurrent": decoder_layer.normal(keys[2], (width, 3, width), width),
        "joint": decoder_layer.normal(keys[3], (dim + width, rank), dim + width),
        "output": jnp.zeros((rank, target.vocab_size)),
        head_config.CONFIG: HeadConfig(pure),
    }


def start(params: Params, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """Return s [..., G] before the anchor, and the slot's number float32[..., 1]."""
    kernel = params["recurrent"]
    state = jnp.zeros((*shape, kernel.shape[0]), kernel.dtype)
    return state, jnp.zeros((*shape, 1), jnp.float32)


def step(
    params: Params, carry: Any, tokens: Array, embedded: Array, slot: Slot
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Read the tokens before a slot: return s_k, and it with whether it is used."""
    state, number = carry
    x = product(embedded.astype(state.dtype), params["inputs"])
    y = product(state, params["recurrent"])
    reset, keep = (jax.nn.sigmoid(x[..., i, :] + y[..., i, :]) for i in (0, 1))
    new = jnp.tanh(x[..., 2, :] + reset * y[..., 2, :])
    state = (1.0 - keep) * new + keep * state
    used = (number >= config_of(params).pure).astype(state.dtype)
    return (state, number + 1), (state, used)


def logits(params: Params, slot: Slot, laws: Array, summary: Any, head: Any) -> Array:
    """Compute logits [..., V] of a slot after the tokens that `summary` is of."""
    state, used = summary
    states = jnp.broadcast_to(slot.states, (*state.shape[:-1], slot.states.shape[-1]))
    x = jax.nn.silu(jnp.concatenate([states, state], -1) @ params["joint"])
    return laws + (used * (x @ params["output"])).astype(jnp.float32)


HEAD = Head("Domino", start, step, logits, memory=lambda params: True)
