"""Automata over bytes, and their lift to the tokens of a vocabulary.

A token is a string of bytes, so a byte automaton of `S` states makes each token a
*column*: the map from the state before it to the state after it. Few columns differ
(every token that no string of the language holds has the dead one), so the tokens
fall into `C` classes and the lifted automaton is `next[Q, C]` with `classes[V]`.

Sizes, for the 146-state automaton of a small JSON object: 146 x 102 states by classes at
V = 131,072, that is 0.3 MB where the dense table would take 38 MB.

Everything here runs on the host, in NumPy, once a constraint.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

DEAD = -1


class ByteDFA(NamedTuple):
    """A deterministic automaton over bytes."""

    next: np.ndarray  # int32[S, 256]; DEAD: no string of the language goes on so
    accept: np.ndarray  # bool[S]
    start: int


class TokenDFA(NamedTuple):
    """A deterministic automaton over token classes."""

    next: np.ndarray  # int32[Q, C]; DEAD: forbidden
    classes: np.ndarray  # int32[V]: the class of each token
    accept: np.ndarray  # bool[Q]
    start: int


def closure(step: np.ndarray, seed: np.ndarray, backward: bool) -> np.ndarray:
    """bool[Q]: the states that `seed` bool[Q] reaches, or that reach it.

    `step` int[Q, M] lists the successors of each state, DEAD for none.
    """
    found = seed.copy()
    while True:
        if backward:
            grown = found | np.append(found, False)[step].any(1)
        else:
            grown = found.copy()
            targets = step[found].ravel()
            grown[targets[targets >= 0]] = True
        if (grown == found).all():
            return found
        found = grown


def trim(step: np.ndarray, accept: np.ndarray, start: int) -> tuple:
    """Drop the states that are unreachable or from which nothing is accepted.

    Returns (next, accept, start) renumbered; `start` is DEAD for the empty language.
    """
    live = closure(step, accept, backward=True)
    step = np.where(np.append(live, False)[step], step, DEAD)
    seed = np.zeros(len(accept), bool)
    seed[start] = live[start]
    kept = closure(step, seed, backward=False)
    number = np.append(np.where(kept, np.cumsum(kept) - 1, DEAD), DEAD)
    return number[step[kept]], accept[kept], int(number[start])


def minimise(dfa: ByteDFA) -> ByteDFA:
    """The least automaton of the same language (Moore's partition refinement)."""
    step, accept, start = trim(dfa.next, dfa.accept, dfa.start)
    if start == DEAD:
        return ByteDFA(step.astype(np.int32), accept, DEAD)
    distinct = np.unique(step, axis=1)
    block, count = accept.astype(np.int64), 0
    while block.max() + 1 > count:
        count = block.max() + 1
        after = np.append(block, DEAD)[distinct]
        signature = np.concatenate([block[:, None], after], 1).astype(np.int32)
        block = np.unique(signature, axis=0, return_inverse=True)[1].reshape(-1)
    first = np.unique(block, return_index=True)[1]
    merged = np.append(block, DEAD)[step[first]]
    return ByteDFA(merged.astype(np.int32), accept[first], int(block[start]))


def lift(
    dfa: ByteDFA, tokens: Sequence[bytes], vocab_size: int, inert: bool = False
) -> TokenDFA:
    """The automaton that reads whole tokens; its states are those of `dfa`.

    `tokens[i]` are the bytes of token i. Tokens of no bytes (specials) and ids past the
    list (padding of the embedding) are forbidden, or change nothing where `inert`.

    One byte position is done a step, for all tokens at once: tokens whose prefixes have
    the same column are one class, so that a step costs a lookup for each pair of class
    and byte, not for each token and state.
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


def prune(automaton: TokenDFA) -> TokenDFA:
    """Forbid what cannot lead to acceptance *with tokens of this vocabulary*.

    A byte path to acceptance is not enough: if no token spells it, a text that went
    there could neither go on nor end. Classes that become equal are merged. `start` is
    DEAD when no sequence of tokens is accepted.
    """
    step, accept, start = trim(automaton.next, automaton.accept, automaton.start)
    step, merged = np.unique(step, axis=1, return_inverse=True)
    classes = merged.reshape(-1)[automaton.classes]
    return TokenDFA(step, classes.astype(np.int32), accept, start)


def compact(table: np.ndarray) -> np.ndarray:
    """`table` in the narrowest of int16 and int32 that holds it."""
    return table.astype(np.int16 if table.max(initial=0) < 2**15 else np.int32)
