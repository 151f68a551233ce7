"""Several processes of one run: the one that writes, agreement and barriers."""

from collections.abc import Callable

import jax
import numpy as np
from jax.experimental import multihost_utils


def leads() -> bool:
    """Return whether this is process 0, which alone writes logs, bars and files."""
    return jax.process_index() == 0


def agreed(value: bool) -> bool:
    """Return process 0's value on every process.

    A file may exist for one process and not for another, but all processes or none
    must take part in a joint computation.
    """
    if jax.process_count() == 1:
        return value
    return bool(multihost_utils.broadcast_one_to_all(np.int32(value)))


def either(flags: np.ndarray) -> np.ndarray:
    """Combine `flags` bool[n] of all processes by a logical or."""
    if jax.process_count() == 1:
        return flags
    return np.asarray(multihost_utils.process_allgather(flags).any(0))


def meet(name: str) -> None:
    """Wait until every process has reached the barrier `name`."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(name)


def written(write: Callable[[], object], name: str) -> None:
    """Call `write` on process 0; the other processes wait for it at barrier `name`."""
    if leads():
        write()
    meet(name)
