"""Copies of the target's embedding and head in the files of published heads."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from models.errors import CheckpointError

COPIES = ("embed_tokens.weight", "input_embed_fn.weight")
HEAD = "lm_head.weight"


def differing(copy: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the numbers of rows in which a copy differs; either may be rounded."""
    there = (copy != rows.astype(copy.dtype)).any(-1)
    here = (copy.astype(rows.dtype) != rows).any(-1)
    return np.flatnonzero(there if there.sum() < here.sum() else here)


def check(
    theirs: Mapping[str, Any],
    rows: np.ndarray,
    names: Sequence[str] = COPIES,
    part: str = "embedding",
) -> None:
    """Refuse copies of another embedding; either may be the other, rounded.

    Args:
        theirs: the file's tensors by name.
        rows: the target's [V, D].
        names: the tensors that are copies, where they are in the file.
        part: of the target, for errors.
    """
    for name in names:
        if name not in theirs:
            continue
        copy = np.asarray(theirs[name])
        fault = f"has the shape {copy.shape}, not {rows.shape}"
        if copy.shape == rows.shape:
            count = len(differing(copy, rows))
            fault = f"differs in {count} of {len(rows)} rows"
            if not count:
                continue
        raise CheckpointError(
            f"{name} is not the target's {part} (it {fault}): the head is for "
            f"another target, or trained its own {part}"
        )
