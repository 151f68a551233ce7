"""TreeFlash's correction: a slot's state, moved by the token before it.

Rheinboldt, Berdoz, Wattenhofer, *TreeFlash: Parallel AR-Approximation for Faster
Speculative Decoding*, 2026, arXiv 2606.03819. With y_k the last layer's output at slot
k of a block (`models/heads/dflash.py`), h_k = norm(y_k) and a the token before the
slot's,

    [u ; g] = A [norm_e(e(a)) ; h_k] + b
    law = softmax(W_lm norm(y_k + C (SiLU(g) u)))

so that all pairs of a slot and a token before it are one batch. A, b → `up` [2 D, 2,
F], `up_bias` [2, F], u first; C → `down` [F, D], zero at first; norm_e →
`embedding_norm`; F is the MLP's width.

Deviations: none.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from models.heads import dflash
from models.heads.modules import decoder_layer, head_config
from models.heads.modules.block_head import Head, Slot
from models.heads.modules.decoder_layer import Params
from models.transformer.modules import product


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class HeadConfig:
    eps: float = head_config.unseen(1e-6)  # of the norms


def by_keys(params: Params) -> HeadConfig:
    """Derive the config of params that carry none."""
    return HeadConfig()


def config_of(params: Params) -> HeadConfig:
    return head_config.of(params, by_keys)


def init(key: Array, target: Any, **fields: Any) -> Params:
    """Draw float32 params; `fields` are those of `dflash.backbone`."""
    keys = jax.random.split(key, 2)
    c = decoder_layer.geometry(target)
    dim = c.d_model
    return {
        "backbone": dflash.backbone(keys[0], target, **fields),
        "embedding_norm": jnp.ones(dim),
        "up": decoder_layer.normal(keys[1], (2 * dim, 2, c.d_ff), 2 * dim),
        "up_bias": jnp.zeros((2, c.d_ff)),
        "down": jnp.zeros((c.d_ff, dim)),
        head_config.CONFIG: HeadConfig(c.norm_eps),
    }


def start(params: Params, shape: tuple[int, ...]) -> tuple:
    """Return (): nothing is handed from slot to slot."""
    return ()


def step(
    params: Params, carry: Any, tokens: Array, embedded: Array, slot: Slot
) -> tuple[tuple, Array]:
    """Return what `logits` reads of the tokens before a slot: norm_e(e(a)) [..., D]."""
    eps = config_of(params).eps
    return (), decoder_layer.rms(embedded, params["embedding_norm"], eps)


def logits(params: Params, slot: Slot, laws: Array, summary: Array, head: Any) -> Array:
    """Compute logits [..., V] of a slot after the tokens that `summary` is of."""
    states = jnp.broadcast_to(slot.states, (*summary.shape[:-1], slot.states.shape[-1]))
    x = product(jnp.concatenate([summary, states], -1), params["up"])
    x = x + params["up_bias"]
    moved = slot.raw + (x[..., 0, :] * jax.nn.silu(x[..., 1, :])) @ params["down"]
    return head(dflash.normed(params["backbone"], moved, config_of(params).eps))


HEAD = Head("TreeFlash", start, step, logits)
