"""Making activations again in the backward pass, where a count of operations sees it.

What is made again is no work of the model: the share of a device's rate that a training
uses (MFU) leaves it out (Chowdhery et al., *PaLM*, 2022, arXiv 2204.02311, appendix B).
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator

import jax

_OFF: contextvars.ContextVar[bool] = contextvars.ContextVar("off", default=False)


@contextlib.contextmanager
def off() -> Iterator[None]:
    """What is traced here keeps all its activations."""
    token = _OFF.set(True)
    try:
        yield
    finally:
        _OFF.reset(token)


def again(function: Callable, static: tuple[int, ...] = ()) -> Callable:
    """`function`, whose activations are made again in the backward pass."""
    if _OFF.get():
        return function
    return jax.checkpoint(function, static_argnums=static)
