"""Copies of the target's embedding in the files of published heads."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from models.errors import CheckpointError

COPIES = ("embed_tokens.weight", "input_embed_fn.weight")


def check(theirs: Mapping[str, Any], rows: np.ndarray) -> None:
    """Refuse copies of another embedding; either may be the other, rounded."""
    for name in COPIES:
        if name not in theirs:
            continue
        copy = np.asarray(theirs[name])
        fault = f"has the shape {copy.shape}, not {rows.shape}"
        if copy.shape == rows.shape:
            there = (copy != rows.astype(copy.dtype)).any(-1).sum()
            here = (copy.astype(rows.dtype) != rows).any(-1).sum()
            fault = f"differs in {min(there, here)} of {len(rows)} rows"
            if not min(there, here):
                continue
        raise CheckpointError(
            f"{name} is not the target's embedding (it {fault}): the head is for "
            "another target, or trained an embedding of its own"
        )
