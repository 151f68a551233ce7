"""Automata over bytes, and their lift to the tokens of a vocabulary.

A token is a string of bytes, so a byte automaton of `S` states makes each token a
*column*: the map from the state before it to the state after it. Few columns differ:
every token that is in no string of the language has the dead column. So the tokens fall
into `C` classes, and the lifted automaton is `next[Q, C]` with `classes[V]`.

For example, at V = 131,072: a date needs 14 x 13 entries (states by classes), a small
JSON object 244 x 108, one with strings of up to 40 characters 2,022 x 208. In int16
that is 0.26, 0.31 and 1.1 MB, `classes` included, where dense tables would take 3.7, 64
and 530 MB. At V = 4,096 the last one needs 83 classes and 0.34 MB.

Everything here runs on the host, in NumPy, once per constraint.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

DEAD = -1


class ByteDFA(NamedTuple):
    """A deterministic automaton over bytes."""

    next: np.ndarray  # int32[S, 256]; DEAD: no string of the language continues so
    accept: np.ndarray  # bool[S]
    start: int


class TokenDFA(NamedTuple):
    """A deterministic automaton over token classes."""

    next: np.ndarray  # int32[Q, C]; DEAD: forbidden
    classes: np.ndarray  # int32[V]: the class of each token
    accept: np.ndarray  # bool[Q]
    start: int


def _predecessors(step: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return `sources` and `first`: the states with a move to each state.

    Those of state t are `sources[first[t] : first[t + 1]]`.
    """
    sources, columns = np.nonzero(step != DEAD)
    targets = step[sources, columns]
    order = np.argsort(targets, kind="stable")
    return sources[order], np.searchsorted(targets[order], np.arange(len(step) + 1))


def distances(step: np.ndarray, accept: np.ndarray) -> np.ndarray:
    """Return the moves from each state to the nearest accepting one, int32[Q].

    DEAD: none is reached. A round expands only the new states, so long chains stay
    linear.
    """
    sources, first = _predecessors(step)
    least = np.where(accept, 0, DEAD).astype(np.int32)
    fresh, moves = np.flatnonzero(accept), 0
    while len(fresh):
        before = [sources[first[q] : first[q + 1]] for q in fresh]
        reached = np.unique(np.concatenate(before))
        fresh = reached[least[reached] == DEAD]
        moves += 1
        least[fresh] = moves
    return least


def _reachable(step: np.ndarray, start: int) -> np.ndarray:
    """Return the states that `start` reaches, bool[Q]; none if it is DEAD."""
    seen = np.zeros(len(step), bool)
    fresh = np.array([start] if start != DEAD else [], np.int64)
    while len(fresh):
        seen[fresh] = True
        reached = np.unique(step[fresh])
        fresh = reached[(reached != DEAD) & ~seen[reached]]
    return seen


def trim(step: np.ndarray, accept: np.ndarray, start: int) -> tuple:
    """Drop the states that are unreachable or cannot reach acceptance.

    Returns:
        (next, accept, start), renumbered; `start` is DEAD for the empty language.
    """
    live = distances(step, accept) != DEAD
    step = np.where(np.append(live, False)[step], step, DEAD)
    alive = _reachable(step, start if live[start] else DEAD)
    number = np.append(np.where(alive, np.cumsum(alive) - 1, DEAD), DEAD)
    return number[step[alive]], accept[alive], int(number[start])


def _refine(step: np.ndarray, accept: np.ndarray) -> np.ndarray:
    """Return the coarsest partition that `step` [S, M] and `accept` respect, int64[S].

    This is Moore's refinement, but a round revisits only the states with a successor
    that moved to another block. The largest part of a split block keeps its number, so
    few states move. A counted repetition is a long chain, on which full rounds would be
    quadratic.
    """
    block = np.append(np.unique(accept, return_inverse=True)[1], DEAD)
    members = [
        set(np.flatnonzero(block[:-1] == b).tolist()) for b in range(block.max() + 1)
    ]
    sources, first = _predecessors(step)
    dirty = set(range(len(accept)))
    while dirty:
        parts: dict[int, dict[bytes, set[int]]] = {}
        for state in dirty:
            signature = block[step[state]].tobytes()
            parts.setdefault(block[state], {}).setdefault(signature, set()).add(state)
        staying = {}
        for b, split in parts.items():
            clean = len(members[b]) - sum(map(len, split.values()))
            sizes = {signature: len(part) for signature, part in split.items()}
            if clean:
                # The clean states of a block still agree: one represents them all.
                representative = next(
                    state for state in members[b] if state not in dirty
                )
                signature = block[step[representative]].tobytes()
                sizes[signature] = sizes.get(signature, 0) + clean
            staying[b] = max(sizes, key=sizes.__getitem__)
            if clean and staying[b] != signature:
                split.setdefault(signature, set()).update(members[b] - dirty)
        moved: list[int] = []
        for b, split in parts.items():
            for part in (
                split[signature] for signature in split if signature != staying[b]
            ):
                members[b] -= part
                block[list(part)] = len(members)
                members.append(part)
                moved.extend(part)
        dirty = {s for t in moved for s in sources[first[t] : first[t + 1]].tolist()}
    return block[:-1]


def minimise(dfa: ByteDFA) -> ByteDFA:
    """Return the minimal automaton of the same language."""
    step, accept, start = trim(dfa.next, dfa.accept, dfa.start)
    if start == DEAD:
        return ByteDFA(step.astype(np.int32), accept, DEAD)
    block = _refine(np.unique(step, axis=1), accept)
    first = np.unique(block, return_index=True)[1]
    merged = np.append(block, DEAD)[step[first]]
    return ByteDFA(merged.astype(np.int32), accept[first], int(block[start]))


def lift(
    dfa: ByteDFA, tokens: Sequence[bytes], vocab_size: int, inert: bool = False
) -> TokenDFA:
    """Lift a byte automaton to one that reads whole tokens, with the states of `dfa`.

    A step processes one byte position of all tokens. Tokens whose prefixes have the
    same column form one class. So a step costs one lookup for each pair of class and
    byte, not for each token and state.

    Args:
        dfa: the byte automaton.
        tokens: the bytes of each token. Tokens without bytes (specials) and ids past
            the list (padding of the embedding) are forbidden.
        vocab_size: V.
        inert: tokens without bytes keep the state instead of being forbidden.
    """
    states = len(dfa.accept)
    step = np.vstack([dfa.next, np.full((1, 256), DEAD, np.int32)])
    columns = [np.arange(states, dtype=np.int32), np.full(states, DEAD, np.int32)]
    known = {column.tobytes(): i for i, column in enumerate(columns)}
    lengths = np.array([len(token) for token in tokens], np.int64)
    offsets = np.cumsum(lengths) - lengths
    flat = np.frombuffer(b"".join(tokens), np.uint8)
    classes = np.zeros(vocab_size, np.int64)
    classes[len(tokens) :] = 0 if inert else 1
    classes[: len(tokens)][lengths == 0] = 0 if inert else 1
    for position in range(lengths.max(initial=0)):
        at = np.flatnonzero(lengths > position)
        at = at[classes[at] != 1]
        pairs = classes[at] * 256 + flat[offsets[at] + position]
        pairs, inverse = np.unique(pairs, return_inverse=True)
        reached = np.empty(len(pairs), np.int64)
        for i, pair in enumerate(pairs):
            column = step[columns[pair >> 8], pair & 255]
            reached[i] = known.setdefault(column.tobytes(), len(columns))
            if reached[i] == len(columns):
                columns.append(column)
        classes[at] = reached[inverse]
    used, classes = np.unique(classes, return_inverse=True)
    table = np.stack([columns[i] for i in used], 1)
    return TokenDFA(table, classes.astype(np.int32), dfa.accept, dfa.start)


def compact(table: np.ndarray) -> np.ndarray:
    """Convert `table` to int16 if its values fit, else to int32."""
    return table.astype(np.int16 if table.max(initial=0) < 2**15 else np.int32)
