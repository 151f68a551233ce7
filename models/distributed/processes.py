"""Several processes of one run: the one that writes, agreement and barriers.

They may have no folder in common: what process 0 reads or makes it tells the others.
"""

import json
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from models.errors import DecodaxError


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


def told(make: Callable[[], Any]) -> Any:
    """Call `make` on process 0 and return its result on every process, through JSON.

    Raises `DecodaxError` elsewhere where it fails there, so that none waits for ever.
    """
    if jax.process_count() == 1:
        return make()
    answer: dict[str, Any] = {}
    failure: Exception | None = None
    if leads():
        try:
            answer = {"value": make()}
        except Exception as error:
            failure, answer = error, {"failed": f"{type(error).__name__}: {error}"}
    raw = np.frombuffer(json.dumps(answer).encode(), np.uint8)
    size = int(multihost_utils.broadcast_one_to_all(np.int32(raw.size)))
    raw = raw if leads() else np.zeros(size, np.uint8)
    answer = json.loads(np.asarray(multihost_utils.broadcast_one_to_all(raw)).tobytes())
    if failure is not None:
        raise failure
    if "failed" in answer:
        raise DecodaxError(f"process 0 failed: {answer['failed']}")
    return answer["value"]


def either(flags: np.ndarray) -> np.ndarray:
    """Combine `flags` bool[n] of all processes by a logical or."""
    if jax.process_count() == 1:
        return flags
    return np.asarray(multihost_utils.process_allgather(flags).any(0))


def meet(name: str) -> None:
    """Wait until every process has reached the barrier `name`."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(name)


def written(write: Callable[[], object]) -> None:
    """Call `write` on process 0; the other processes wait for it."""
    told(lambda: (write(), None)[1])
