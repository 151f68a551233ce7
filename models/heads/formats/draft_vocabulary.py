"""The draft vocabulary of EAGLE-3's files: `d2t`, ids or offsets; the mask `t2d`."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from models.errors import CheckpointError


def read(theirs: Mapping[str, Any], target: Any) -> np.ndarray | None:
    """Return the draft's token ids; `d2t` holds them, or their offsets `id - i`.

    The mask `t2d` decides which; without it, values that rise at every step are ids.
    None: the target's vocabulary. Raises `CheckpointError` for other values.
    """
    if "d2t" not in theirs:
        return None
    stored = np.asarray(theirs["d2t"]).astype(np.int64)
    ids = stored + np.arange(len(stored))
    forms: tuple[np.ndarray, ...] = (ids,)
    if (np.diff(stored) > 0).all():
        forms = (stored, ids)
    if "t2d" in theirs:
        mask = np.flatnonzero(np.asarray(theirs["t2d"]))
        forms = tuple(form for form in (ids, stored) if np.array_equal(form, mask))
    for form in forms:
        rising = (np.diff(form) > 0).all() and form[0] >= 0
        if rising and form[-1] < target.vocab_size:
            return form.astype(np.int32)
    raise CheckpointError(
        f"d2t holds neither offsets nor rising ids below {target.vocab_size}, or t2d "
        "disagrees with it: the head is for another target"
    )


def write(kept: Any, target: Any) -> dict[str, np.ndarray]:
    """Return `d2t` int64[W], as offsets, and `t2d` bool[V] of ids `kept` int32[W]."""
    ids = np.asarray(kept, np.int64)
    inside = np.isin(np.arange(target.vocab_size), ids)
    return {"d2t": ids - np.arange(len(ids)), "t2d": inside}
