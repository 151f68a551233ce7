"""A weight with a low-rank change beside it, for layers that learn one (LoRA)."""

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array


@struct.dataclass
class LowRank:
    """Weight W [in, out ...] and its change; `product` gives x W + drop(x) A B.

    The change is one pair A [in, r], B [r, part ...] for each part of W, and the parts
    are joined along the last axis but one. No array of W's size is made beside W. Flax
    compares the first field with the shape that a module expects.
    """

    weight: Array
    pairs: tuple[tuple[Array, Array], ...]
    key: Array | None = None  # of the dropout
    dropout: float = struct.field(pytree_node=False, default=0.0)

    def change(self, x: Array) -> Array:
        """Compute drop(x) A B [..., out ...] of x [..., in], in x's dtype."""
        outs = []
        for i, (a, b) in enumerate(self.pairs):
            inside = x
            if self.key is not None:
                inside = dropped(jax.random.fold_in(self.key, i), x, self.dropout)
            outs.append(jnp.tensordot(jnp.tensordot(inside, a, 1), b, 1))
        out = jnp.concatenate(outs, -2) if len(outs) > 1 else outs[0]
        return out.astype(x.dtype)


def dropped(key: Array, x: Array, rate: float) -> Array:
    """Apply inverted dropout: zeros at `rate`, the rest of x divided by 1 - rate."""
    return jnp.where(jax.random.bernoulli(key, 1 - rate, x.shape), x / (1 - rate), 0)
