"""MXFP4 tensors of the released gpt-oss files, decoded as they are loaded.

`models/transformer/mxfp4.py` describes them.
"""

from typing import Any

import jax.numpy as jnp

from models.checkpoints import hf
from models.transformer.mxfp4 import BLOCK, decoded


def _split(x: Any) -> tuple:
    """Return the shapes of rows [..., in] in blocks: files are only read."""
    count = x.shape[-1] // BLOCK
    return (
        jnp.zeros((*x.shape[:-1], count, BLOCK // 2), jnp.uint8),
        jnp.zeros((*x.shape[:-1], count), jnp.uint8),
    )


def _joined(theirs: Any) -> Any:
    """Return rows [E, .., in] of blocks and scales as columns, float32."""
    return decoded(theirs[0], theirs[1], jnp.float32).swapaxes(1, 2)


LACED_PAIRS = hf.Layout(  # `[E, 2 F, D]`, gate and up rows in turn
    lambda c, t: hf.LACED_PAIRS.join(c, (_joined(t),)),
    lambda c, x: _split(hf.LACED_PAIRS.split(c, x)[0].swapaxes(1, 2)),
)
EXPERTS = hf.Layout(  # `[E, D, F]`
    lambda c, t: _joined(t), lambda c, x: _split(x.swapaxes(1, 2))
)
