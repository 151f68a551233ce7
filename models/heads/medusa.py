"""Medusa's heads: independent guesses of the tokens after the next one.

Cai et al., *Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding
Heads*, 2024, arXiv 2401.10774, section 2.1.1. Head i (from 0), from the target's last
normed state h_t, predicts token t + 2 + i:

    z = h + SiLU(W_i h + b_i)    L times with the same weights;    logits = z U_i

W → `res` [K, D, D], zero at first; b → `bias` [K, D]; U → `head` [K, V, D], copies of
the target's own head at first. Heads without output rows, as in the first checkpoints,
have no `head`: the target's own reads their z.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from models.heads.modules import decoder_layer, head_config
from models.heads.modules.decoder_layer import Params


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class HeadConfig:
    output_rows: bool = True  # False: all use the target's head


def by_keys(params: Params) -> HeadConfig:
    """Derive the config of params that carry none."""
    return HeadConfig("head" in params)


def config_of(params: Params) -> HeadConfig:
    return head_config.of(params, by_keys)


def init(key: Array, config, output: Array | None, heads: int = 5) -> Params:
    """Initialise float32 params of `heads` heads; `output` [V, D]: the target's head.

    With `res` and `bias` zero every head gives the target's own logits. Without
    `output` the heads have no output rows.
    """
    dim = config.d_model
    params: Params = {
        "res": jnp.zeros((heads, dim, dim)),
        "bias": jax.random.uniform(key, (heads, dim), minval=-1.0) * dim**-0.5,
        head_config.CONFIG: HeadConfig(output is not None),
    }
    if output is not None:
        rows = output.astype(jnp.float32)
        params["head"] = jnp.broadcast_to(rows, (heads, *rows.shape))
    return params


def count(params: Params) -> int:
    return params["res"].shape[0]


def states(params: Params, hidden: Array, blocks: int = 1) -> Array:
    """Compute z [K, ..., D] from the target's states [..., D]; `blocks` is L."""

    def one(res: Array, bias: Array) -> Array:
        z = hidden
        for _ in range(blocks):
            inner = decoder_layer.summed(z @ res)
            z = decoder_layer.summed(z + jax.nn.silu(inner + bias))
        return z

    return jax.vmap(one)(params["res"], params["bias"])


def logits(
    params: Params,
    hidden: Array,
    blocks: int = 1,
    output: Callable[[Array], Array] | None = None,
) -> Array:
    """Compute float32[K, ..., V] from the target's states [..., D].

    `blocks` is L; `output` is the target's own head, for heads without output rows.
    """
    z = states(params, hidden, blocks)
    if config_of(params).output_rows:
        scores = jax.vmap(lambda z, u: z @ u.T)(z, params["head"])
    else:
        assert output is not None, "heads without output rows need the target's output"
        scores = jnp.moveaxis(output(jnp.moveaxis(z, 0, -2)), -2, 0)
    return scores.astype(jnp.float32)


def check(params: Params, target) -> None:
    has_rows = config_of(params).output_rows
    vocab = params["head"].shape[1] if has_rows else None
    decoder_layer.check("Medusa", target, params["res"].shape[-1], vocab)
