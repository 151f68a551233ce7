"""What a round costs, in milliseconds of this device, and its correction by calls."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array

PULL, WRONG = 0.5, 1.5  # exponent of a call's correction of costs, bound of them all


@struct.dataclass
class Costs:
    """Milliseconds of a round."""

    plain: Any  # float32[]: without a draft
    block: Any  # float32[W]: with a whole draft, by width
    level: Any  # float32[]: of one level of the draft


def round_times(costs: Costs, limit: Array, depth: int) -> Array:
    """Return milliseconds [..., W] of rounds that draft `limit` [...] levels."""
    left = costs.level * (depth - limit)
    return jnp.maximum(costs.block - left[..., None], 0.5 * costs.plain)


def corrected(costs: Costs, first: Costs, spent: np.ndarray, measured: float) -> Costs:
    """Move measured costs towards what a call took.

    Other work on a machine changes its speed, and plain decoding's, which reads memory,
    more than a wide block's. Costs that were measured in another hour would mislead.

    Args:
        costs: the costs that the call believed.
        first: the costs that were measured; the new ones differ at most by `WRONG`.
        spent: its milliseconds by them, float32[1 + W]: `Learned.spent`.
        measured: its milliseconds by the clock.
    """
    shares = spent / spent.sum()
    scale = (measured / spent.sum()) ** (PULL * shares)

    def moved(old: Any, first: Any, scale: Any) -> Any:
        bounded = np.clip(old * scale, first / WRONG, first * WRONG)
        return bounded.astype(np.float32)

    plain = moved(costs.plain, first.plain, scale[0])
    block = moved(costs.block, first.block, scale[1:])
    if shares[0] > 0.5:  # a round with a draft does all that one without does
        block = np.maximum(block, plain)
    return Costs(np.minimum(plain, block.min()), block, first.level)
