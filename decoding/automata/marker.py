"""A grammar that begins behind a marker: any text until it, such as `</think>`."""

import numpy as np

from decoding.automata.byte_machine import ANY_LENGTH, DEAD, ByteMachine


def after(machine: ByteMachine, marker: bytes) -> ByteMachine:
    """Put a state before the machine's start for each byte of `marker` that was read.

    These states (of Knuth, Morris and Pratt) read every byte; the text may not end in
    them. Behind the first marker the machine begins.
    """
    size, first = len(marker), len(machine.ends)
    moves = np.zeros((size, 256), np.int32)
    suffix = 0  # where the longest proper suffix of what was read leads
    for i, byte in enumerate(marker):
        moves[i] = moves[suffix] if i else first
        moves[i, byte] = first + i + 1
        if i:
            suffix = int(moves[suffix, byte]) - first
    moves[moves == first + size] = machine.start
    none = np.full(size, -1, np.int32)
    spans = np.tile(np.array(ANY_LENGTH, np.int32), (size, 1))
    left = np.arange(size, 0, -1)
    return ByteMachine(
        np.concatenate([machine.moves, moves]),
        np.concatenate([machine.ends, none]),
        np.concatenate([machine.final, none]),
        np.pad(machine.back, [(0, size), (0, 0)], constant_values=DEAD),
        np.concatenate([machine.span, spans]),
        first,
        np.append(machine.need, np.full(size, machine.need[machine.start], np.int32)),
        np.append(machine.cost, machine.cost[machine.start] + left).astype(np.int32),
        np.append(machine.exit, np.frombuffer(marker, np.uint8).astype(np.int32)),
    )
