"""All fillings of small canvases, by trying every one."""

import itertools

import numpy as np

from decoding.automata import byte_machine
from decoding.automata.byte_machine import ByteMachine
from decoding.automata.canvas_reader import CanvasReader
from decoding.automata.canvas_summaries import CanvasSummaries

EOS, PAD = 0, 1


def whole(machine: ByteMachine, tokens: list[bytes], length: int) -> np.ndarray:
    """Return every canvas without holes that is a text and its end, int32[N, length].

    Token EOS ends a text, and PAD, if it has no bytes, may stand behind an EOS.
    """
    ends = {i for i in (EOS, PAD) if not tokens[i]}
    rows = []
    for row in itertools.product(range(len(tokens)), repeat=length):
        size = next((i for i, token in enumerate(row) if token in ends), length)
        if size < length and (row[size] != EOS or not set(row[size:]) <= ends):
            continue
        if byte_machine.accepts(machine, b"".join(tokens[i] for i in row[:size])):
            rows.append(row)
    return np.array(rows, np.int32).reshape(len(rows), length)


def agreeing(texts: np.ndarray, canvas: np.ndarray) -> np.ndarray:
    """Return which of `texts` [N, C] fill `canvas` [C], bool[N]."""
    return ((canvas < 0) | (texts == canvas)).all(1)


def drawn(
    texts: np.ndarray, size: int, count: int, rng: np.random.Generator
) -> np.ndarray:
    """Return canvases of the texts' length, half of them texts with holes.

    Half of the latter have one more token replaced. All canvases, if there are few.
    """
    length = texts.shape[1]
    if (size + 1) ** length <= count:
        every = list(itertools.product(range(-1, size), repeat=length))
        return np.array(every, np.int32).reshape(len(every), length)
    rows = rng.integers(0, size, (count, length))
    if len(texts):
        rows[::2] = texts[rng.integers(0, len(texts), len(rows[::2]))]
        at = rng.integers(0, length, len(rows[::4]))
        rows[::4][np.arange(len(at)), at] = rng.integers(0, size, len(at))
    holes = rng.random((count, length)) < rng.random((count, 1))
    return np.where(holes, -1, rows).astype(np.int32)


def wrong(
    reader: CanvasReader,
    machine: ByteMachine,
    tokens: list[bytes],
    count: int = 150,
    longest: int = 6,
) -> tuple[int, int]:
    """Count canvases that are answered wrongly: refused, and admitted."""
    rng, refused, admitted = np.random.default_rng(0), 0, 0
    for length in range(longest + 1):
        texts = whole(machine, tokens, length)
        summaries = CanvasSummaries(reader, length)
        for canvas in drawn(texts, len(tokens), count, rng):
            answer, truth = summaries.possible(canvas), agreeing(texts, canvas).any()
            refused += int(truth and not answer)
            admitted += int(answer and not truth)
    return refused, admitted
