"""Several processes that compute the same: which of them writes, what all agree on."""

from collections.abc import Callable

import jax
import numpy as np
from jax.experimental import multihost_utils


def leads() -> bool:
    """Whether this process writes: logs, bars, reports and files are of process 0."""
    return jax.process_index() == 0


def agreed(value: bool) -> bool:
    """What process 0 thinks: a file may be there for one process and not for another.

    Whatever is computed together must be computed by all of them, or by none.
    """
    if jax.process_count() == 1:
        return value
    return bool(multihost_utils.broadcast_one_to_all(np.int32(value)))


def either(flags: np.ndarray) -> np.ndarray:
    """bool[n]: where any of the processes says so."""
    if jax.process_count() == 1:
        return flags
    return np.asarray(multihost_utils.process_allgather(flags).any(0))


def meet(name: str) -> None:
    """Nobody goes on before all have come here."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(name)


def written(write: Callable[[], object], name: str) -> None:
    """Process 0 writes; nobody goes on before it has."""
    if leads():
        write()
    meet(name)
