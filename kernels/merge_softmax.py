"""Merging of attention over parts of a cache, by log-sum-exp."""

import jax.numpy as jnp
from jax import Array


def merge(parts: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Merge attention over disjoint parts, from `(out, lse)` of each.

        lse = log sum_i exp(lse_i),    out = sum_i exp(lse_i - lse) out_i

    `out` [..., d] of any dtype, `lse` float32[...]. A part without a visible slot
    (`lse` -inf) has weight 0; if no part has one, the output is 0.
    """
    weights, lse = _weights(jnp.stack([lse for _, lse in parts]))
    out = sum(
        w[..., None] * part.astype(jnp.float32) for w, (part, _) in zip(weights, parts)
    )
    return jnp.asarray(out).astype(parts[0][0].dtype), lse


def merge_stacked(outs: Array, lses: Array) -> tuple[Array, Array]:
    """Merge parts that are the first axis of `outs` [P, ..., d] and `lses` [P, ...].

    As `merge`, in one reduction however many parts there are.
    """
    weights, lse = _weights(lses)
    out = (weights[..., None] * outs.astype(jnp.float32)).sum(0)
    return out.astype(outs.dtype), lse


def _weights(lses: Array) -> tuple[Array, Array]:
    """Return each part's weight, and the log of the sum, from `lses` [P, ...]."""
    top = lses.max(0)
    top = jnp.where(top == -jnp.inf, 0.0, top)
    weights = jnp.exp(lses - top)
    total = weights.sum(0)
    some = jnp.where(total == 0, 1.0, total)
    lse = jnp.where(total == 0, -jnp.inf, top + jnp.log(some))
    return weights / some, lse
