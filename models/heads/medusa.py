"""Medusa's heads: independent guesses of the tokens after the next one.

Cai et al., *Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding
Heads*, 2024, arXiv 2401.10774, section 2.1.1. Head i (from 0), from the target's last
normed state h_t, predicts token t + 2 + i:

    z = h + SiLU(W_i h + b_i)    L times with the same weights;    logits = z U_i

W → `res` [K, D, D], zero at first; b → `bias` [K, D]; U → `head` [K, V, D], copies of
the target's own head at first.
"""

import jax
import jax.numpy as jnp
from jax import Array

from models.heads import layers
from models.heads.layers import Params


def init(key: Array, config, output: Array, heads: int = 5) -> Params:
    """Params of `heads` heads; `output` [V, D] is the target's head.

    With `res` and `bias` zero every head gives the target's own logits.
    """
    dim = config.d_model
    return {
        "res": jnp.zeros((heads, dim, dim)),
        "bias": jax.random.uniform(key, (heads, dim), minval=-1.0) * dim**-0.5,
        "head": jnp.broadcast_to(output.astype(jnp.float32), (heads, *output.shape)),
    }


def count(params: Params) -> int:
    return params["res"].shape[0]


def states(params: Params, hidden: Array, blocks: int = 1) -> Array:
    """z [K, ..., D] of the target's states [..., D]."""

    def one(res: Array, bias: Array) -> Array:
        z = hidden
        for _ in range(blocks):
            z = z + jax.nn.silu(z @ res + bias)
        return z

    return jax.vmap(one)(params["res"], params["bias"])


def logits(params: Params, hidden: Array, blocks: int = 1) -> Array:
    """float32[K, ..., V] of the target's states [..., D]."""
    z = states(params, hidden, blocks)
    found = jax.vmap(lambda z, u: z @ u.T)(z, params["head"])
    return found.astype(jnp.float32)


def check(params: Params, target) -> None:
    vocab, width = params["head"].shape[1:]
    layers.check("Medusa", target, width, vocab)
