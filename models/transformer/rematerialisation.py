"""Rematerialisation in the backward pass, with a switch to trace without it.

Recomputation is no work of the model: the share of a device's rate that a training uses
(MFU) leaves it out (Chowdhery et al., *PaLM*, 2022, arXiv 2204.02311, appendix B).
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator

import jax

_OFF: contextvars.ContextVar[bool] = contextvars.ContextVar("off", default=False)


@contextlib.contextmanager
def off() -> Iterator[None]:
    """Trace without rematerialisation: functions keep all their activations."""
    token = _OFF.set(True)
    try:
        yield
    finally:
        _OFF.reset(token)


def remat(function: Callable, static: tuple[int, ...] = ()) -> Callable:
    """Rematerialise `function`: the backward pass recomputes its activations.

    `static` are the positions of its static arguments.
    """
    if _OFF.get():
        return function
    return jax.checkpoint(function, static_argnums=static)
