"""MXFP4 tensors of the released gpt-oss files, decoded as they are loaded.

`models/transformer/mxfp4.py` describes them.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np

from models.checkpoints import hf

NAME = "mxfp4"
SIZES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
VALUES = np.asarray([*SIZES, *[-x for x in SIZES]], np.float32)


def decoded(blocks: Any, scales: Any) -> Any:
    """Decode blocks uint8[..., n, 16] with scales uint8[..., n]: float32[..., 32 n]."""
    pairs = np.stack([VALUES[blocks & 15], VALUES[blocks >> 4]], -1)
    power = scales.astype(np.int32)[..., None] - 127
    values = np.ldexp(pairs.reshape(*blocks.shape[:-1], 32), power)
    return values.reshape(*blocks.shape[:-2], -1)


def _split(x: Any) -> tuple:
    """Return the shapes of rows [..., in] in blocks: files are only read."""
    count = x.shape[-1] // 32
    return (
        jnp.zeros((*x.shape[:-1], count, 16), jnp.uint8),
        jnp.zeros((*x.shape[:-1], count), jnp.uint8),
    )


LACED_PAIRS = hf.Layout(  # `[E, 2 F, D]`, gate and up rows in turn
    lambda c, t: hf.LACED_PAIRS.join(c, (decoded(*t).swapaxes(1, 2),)),
    lambda c, x: _split(hf.LACED_PAIRS.split(c, x)[0].swapaxes(1, 2)),
)
EXPERTS = hf.Layout(  # `[E, D, F]`
    lambda c, t: decoded(*t).swapaxes(1, 2), lambda c, x: _split(x.swapaxes(1, 2))
)
