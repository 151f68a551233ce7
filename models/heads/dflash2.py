"""DFlash 2's heads: convolutions in the block's layers, and a selector of candidates.

Inco AI, *DFlash 2: Keep Drafting Parallel*, 2026, inco.ai/blog/dflash2. Every sublayer
of the block (`models/heads/dflash.py`) reads and writes through a convolution over a
slot and the slot before it (`block_layers`). With h_k the state of slot k, U_k = W_lm
h_k and a the token before the slot's, of the `candidates` tokens b of greatest U_k

    S(b) = U_k(b) + <A(a) * H h_k, C(b)>,    law = softmax(S) among them, 0 elsewhere

A, C → `before`, `after` [V, r]; H → `hidden` [D, r].

Deviations: A begins at zero, so that an untrained head is the block's.
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


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class HeadConfig:
    candidates: int = head_config.unseen(16)


def by_keys(params: Params) -> HeadConfig:
    """Derive the config of params that carry none."""
    return HeadConfig()


def config_of(params: Params) -> HeadConfig:
    return head_config.of(params, by_keys)


def init(
    key: Array,
    target: Any,
    rank: int = 256,
    candidates: int = 16,
    convolution: int = 16,
    **fields: Any,
) -> Params:
    """Draw float32 params.

    Args:
        key: of the draw.
        target: the target's config.
        rank: r.
        candidates: tokens that the selector chooses among.
        convolution: channels that share a kernel; 0: no convolutions.
        fields: of `dflash.backbone`.
    """
    if rank < 1 or not 1 <= candidates <= target.vocab_size:
        raise ConfigError(
            f"rank={rank}, candidates={candidates}: use a rank from 1 on, and 1 to "
            f"{target.vocab_size} candidates"
        )
    keys = jax.random.split(key, 4)
    vocab_size, dim = target.vocab_size, target.d_model
    return {
        "backbone": dflash.backbone(keys[0], target, convolution=convolution, **fields),
        "before": jnp.zeros((vocab_size, rank)),
        "after": decoder_layer.normal(keys[2], (vocab_size, rank), rank),
        "hidden": decoder_layer.normal(keys[3], (dim, rank), dim),
        head_config.CONFIG: HeadConfig(candidates),
    }


def start(params: Params, shape: tuple[int, ...]) -> tuple:
    """Return (): nothing is handed from slot to slot."""
    return ()


def step(
    params: Params, carry: Any, tokens: Array, embedded: Array, slot: Slot
) -> tuple[tuple, Array]:
    """Return what `logits` reads of the tokens before a slot: A(a) [..., r]."""
    return (), params["before"][tokens]


def logits(params: Params, slot: Slot, laws: Array, summary: Array, head: Any) -> Array:
    """Compute S [..., V], -inf but for the candidates."""
    best, ids = jax.lax.top_k(laws, config_of(params).candidates)
    query = summary * (slot.states @ params["hidden"])
    found = jnp.einsum("...r,...kr->...k", query, params["after"][ids])
    scores = best + found.astype(jnp.float32)
    ids = jnp.broadcast_to(ids, scores.shape)
    empty = jnp.full((*scores.shape[:-1], laws.shape[-1]), -jnp.inf)
    return jnp.put_along_axis(empty, ids, scores, -1, inplace=False)


HEAD = Head("DFlash 2", start, step, logits)
