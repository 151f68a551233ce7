"""Rows of whole documents: packed once, each from its own beginning.

A row holds as many whole documents as fit, by best fit in order of falling length. A
document that is longer than a row is cut at the row's end. The rest of a row is
padding: separators, whose number is that of no document and which nothing predicts.
"""

import bisect
from collections.abc import Sequence

import numpy as np


def pack(
    lengths: Sequence[int], room: int, seed: int | Sequence[int] = 0
) -> list[list[int]]:
    """Choose the documents of each row of `room` tokens; rows come in a random order.

    `lengths` are those of the documents. Each is in exactly one row.
    """
    rng = np.random.default_rng(seed)
    sizes = np.minimum(np.asarray(lengths), room)
    order = rng.permutation(len(sizes))
    order = order[np.argsort(-sizes[order], kind="stable")]
    rows: list[list[int]] = []
    spaces: list[tuple[int, int]] = []  # (what is left, row), rising
    for document in order.tolist():
        size = int(sizes[document])
        place = bisect.bisect_left(spaces, (size, -1))
        if place == len(spaces):
            left, row = room, len(rows)
            rows.append([])
        else:
            left, row = spaces.pop(place)
        rows[row].append(document)
        bisect.insort(spaces, (left - size, row))
    return [rows[i] for i in rng.permutation(len(rows))]


def row(
    parts: Sequence[tuple[np.ndarray, np.ndarray]], room: int, padding: int
) -> dict[str, np.ndarray]:
    """Join documents to one row.

    Args:
        parts: of each document its tokens int32[n] and its mask bool[n].
        room: tokens of the row.
        padding: the token of the rest.

    Returns:
        `tokens` int32[room], `segments` int32[room], numbers from 0 in order, the
        padding's last, and `loss_mask` bool[room], False on first tokens and padding.
    """
    tokens = np.full(room, padding, np.int32)
    segments = np.full(room, len(parts), np.int32)
    mask = np.zeros(room, bool)
    start = 0
    for number, (document, learned) in enumerate(parts):
        size = min(len(document), room - start)
        place = slice(start, start + size)
        tokens[place], segments[place] = document[:size], number
        mask[place] = learned[:size]
        mask[start] = False
        start += size
    return {"tokens": tokens, "segments": segments, "loss_mask": mask}
