"""Byte machines with equal states merged (Moore's partition refinement)."""

import numpy as np

from decoding.automata.byte_machine import CALL, DEAD, POP, STRING, ByteMachine


def merge_states(machine: ByteMachine) -> ByteMachine:
    """Return the same machine with one state for all that cannot be told apart.

    Equal are states that read, call and end alike, into equal states, and go on alike
    behind a value. The states of STRING stay as they are.
    """
    states = len(machine.ends)
    columns = _numbered(machine.moves.T)  # bytes that are read alike, once
    moves = machine.moves[:, np.unique(columns, return_index=True)[1]]
    table = np.concatenate([moves, machine.back], 1)
    is_state = (table != DEAD) & ((table & POP) == 0)
    kind = np.where(is_state, table & CALL, table)
    target = np.where(is_state, table & ~CALL, 0)
    fixed = [machine.ends, machine.final, machine.span, machine.need, machine.cost]
    own = np.minimum(np.arange(states), STRING)
    block = _numbered(np.column_stack([*fixed, own, kind]))
    # Rounds on sums of random weights cost a hundredth of those on whole rows. Where
    # sums agreed by chance, the rounds on whole rows split the blocks.
    rng = np.random.default_rng(0)
    of_block = rng.integers(1, 2**63, states, np.uint64)
    of_column = rng.integers(1, 2**63, table.shape[1], np.uint64)
    at, column = np.nonzero(is_state)
    reached = target[at, column]
    for is_exact in (False, True):
        count = 0
        while block.max() >= count:  # a round splits blocks, or is the last one
            count = block.max() + 1
            if is_exact:
                behind = np.where(is_state, block[target], DEAD)
                block = _numbered(np.column_stack([block, behind]))
            else:
                sums = of_block[block] * np.uint64(3)
                np.add.at(sums, at, of_block[block[reached]] * of_column[column])
                block = np.unique(sums, return_inverse=True)[1].reshape(-1)
    first = np.unique(block, return_index=True)[1]
    order = np.argsort(np.argsort(first))  # blocks in the order of their first states
    number = order[block].astype(np.int32)
    chosen = np.sort(first)

    def renumbered(rows: np.ndarray) -> np.ndarray:
        is_target = (rows != DEAD) & ((rows & POP) == 0)
        to = number[np.where(is_target, rows & ~CALL, 0)] | rows & CALL
        return np.where(is_target, to, rows).astype(np.int32)

    return ByteMachine(
        renumbered(machine.moves[chosen]),
        machine.ends[chosen],
        machine.final[chosen],
        renumbered(machine.back[chosen]),
        machine.span[chosen],
        int(number[machine.start]),
        machine.need[chosen],
        machine.cost[chosen],
        machine.exit[chosen],
    )


def _numbered(rows: np.ndarray) -> np.ndarray:
    """Return a number for each row; equal rows have equal numbers."""
    known: dict[bytes, int] = {}  # a tenth of the time of a sort of rows
    whole = rows.astype(np.int32)
    return np.array([known.setdefault(row.tobytes(), len(known)) for row in whole])
