"""Canvases of byte machines, answered by the host while a program on the device waits.

An answer is a function of the machine, the vocabulary and the canvas alone. Summaries
of earlier canvases only save work, so the order of the questions does not matter.
"""

import collections
import threading
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from decoding.automata.byte_machine import ByteMachine
from decoding.automata.canvas_reader import CanvasReader
from decoding.automata.canvas_summaries import CanvasSummaries
from decoding.automata.numbered import Numbers

SHORT = 128  # tokens of a canvas that a reader serves at least
LENGTHS = 64  # lengths of canvases that a matcher keeps summaries of


class CanvasMatcher:
    """A machine and a vocabulary, for canvases int32[n] with -2 behind their ends."""

    def __init__(
        self, machine: ByteMachine, tokens: Sequence[bytes], eos: Sequence[int]
    ) -> None:
        """Keep the parts; nothing is read before the first canvas.

        Args:
            machine: a machine over bytes.
            tokens: the bytes of each token; those without any are in no text.
            eos: the tokens that end a text.
        """
        self._parts = machine, tokens, eos
        self._reader: CanvasReader | None = None
        self._longest = 0
        self._lock = threading.Lock()
        self._of_length: collections.OrderedDict[int, CanvasSummaries] = (
            collections.OrderedDict()
        )

    def _summaries(self, length: int) -> CanvasSummaries:
        if self._reader is None or length > self._longest:
            self._longest = max(SHORT, 1 << max(length - 1, 0).bit_length())
            self._reader = CanvasReader(*self._parts, longest=self._longest)
            self._of_length.clear()
        if length not in self._of_length:
            self._of_length[length] = CanvasSummaries(self._reader, length)
            if len(self._of_length) > LENGTHS:
                self._of_length.popitem(last=False)
        self._of_length.move_to_end(length)
        return self._of_length[length]

    def possible(self, canvas: np.ndarray) -> bool:
        """Return whether some filling is a whole text."""
        text = canvas[canvas >= -1]
        with self._lock:
            return bool(self._summaries(len(text)).possible(text))

    def first(self, canvas: np.ndarray, position: int, tokens: np.ndarray) -> int:
        """Return the first of `tokens` that may stand at an open position; -1: none.

        There is none either at a position outside the canvas.
        """
        text = canvas[canvas >= -1]
        if not 0 <= position < len(text):
            return -1
        with self._lock:
            return self._summaries(len(text)).first(text, position, tokens)


NUMBERS: Numbers[CanvasMatcher] = Numbers()  # of none: every canvas is possible


def possible(matcher: Array, canvas: Array) -> Array:
    """★ Ask the host whether a canvas int32[n] can be filled, bool[]."""

    def answer(matcher: int, canvas: np.ndarray) -> bool:
        held = NUMBERS.get(matcher)
        return held is None or held.possible(canvas)

    return _asked(answer, jnp.bool_, matcher, canvas)


def first(matcher: Array, canvas: Array, position: Array, tokens: Array) -> Array:
    """★ Ask the host which of `tokens` int32[M] may stand at a position, int32[].

    It is the first one; -1: none, or the position is outside the canvas.
    """

    def answer(
        matcher: int, canvas: np.ndarray, position: int, tokens: np.ndarray
    ) -> int:
        held = NUMBERS.get(matcher)
        if held is None:
            return int(tokens[0]) if position >= 0 else -1
        return held.first(canvas, position, tokens)

    return _asked(answer, jnp.int32, matcher, canvas, position, tokens)


def _asked(answer: Callable, dtype: jnp.dtype, *of_row: Array) -> Array:
    """Call the host once for all rows that the caller maps over."""
    axes = [np.ndim(x) for x in of_row]

    def every(*values: Array) -> np.ndarray:
        arrays = [np.asarray(x) for x in values]
        shape = arrays[0].shape
        flat = [
            x.reshape(-1, *x.shape[x.ndim - ndim :]) for x, ndim in zip(arrays, axes)
        ]
        rows = (answer(*(x if x.ndim else int(x) for x in row)) for row in zip(*flat))
        return np.fromiter(rows, np.dtype(dtype), len(flat[0])).reshape(shape)

    shape = jax.ShapeDtypeStruct((), dtype)
    return jax.pure_callback(every, shape, *of_row, vmap_method="broadcast_all")
