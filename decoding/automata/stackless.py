"""Machines without a stack, such as those of regular expressions, and their lift.

Without a stack a token is a *column*: the map from the state before it to the state
behind it. Tokens with equal columns are one class (`token_dfa.lift`), of which there
are few, so long repetitions cost no walk over the vocabulary from each of their states.

A state is alive if some tokens lead from it to the end of a text. Where the vocabulary
spells every byte that is read, all states are. Elsewhere a text could reach a state
from which bytes go on and no token does, so tokens that lead there are forbidden.
"""

import functools
from collections.abc import Sequence

import numpy as np

from decoding.automata import pushdown, rests, token_dfa
from decoding.automata.byte_machine import ANY_LENGTH, DEAD, QUOTE, STRING, ByteMachine
from decoding.automata.finishing import FAR
from decoding.automata.lift import FEW, Lifted, Lists, no_lists, pack, steps


@functools.cache
def _strings() -> ByteMachine:
    """Return the states of STRING alone."""
    return pushdown.Builder().machine(QUOTE)


def machine(dfa: token_dfa.ByteDFA) -> ByteMachine:
    """Return the machine of an automaton that is trimmed; its stack stays empty."""
    strings, size = _strings(), len(dfa.accept)
    cost = token_dfa.distances(steps(dfa.next)[1], dfa.accept)
    behind = np.append(cost, FAR)[dfa.next]
    own = ByteMachine(
        moves=_shifted(dfa.next, STRING),
        ends=np.full(size, -1, np.int32),
        final=np.where(dfa.accept, 0, -1).astype(np.int32),
        back=np.full((size, strings.back.shape[1]), DEAD, np.int32),
        span=np.tile(np.array(ANY_LENGTH, np.int32), (size, 1)),
        start=dfa.start + STRING,
        need=np.zeros(size, np.int32),
        cost=cost,
        exit=np.where(dfa.accept, -1, behind.argmin(1)).astype(np.int32),
    )
    joined = {
        name: np.concatenate([getattr(strings, name), values])
        for name, values in own._asdict().items()
        if name != "start"
    }
    return ByteMachine(start=own.start, **joined)


def _shifted(states: np.ndarray, by: int) -> np.ndarray:
    return np.where(states == DEAD, DEAD, states + by).astype(np.int32)


def automaton(built: ByteMachine) -> token_dfa.ByteDFA:
    """Return the automaton of a machine whose states neither call nor return."""
    return token_dfa.ByteDFA(
        _shifted(built.moves[STRING:], -STRING),
        built.final[STRING:] >= 0,
        built.start - STRING,
    )


def lift(built: ByteMachine, tokens: Sequence[bytes], vocab_size: int) -> Lifted:
    """Lift a machine whose states neither call nor return.

    What finishing takes is counted in tokens, and is FAR where none finish.

    Args:
        built: the machine.
        tokens: the bytes of each token; b"": it is never allowed.
        vocab_size: V.
    """
    lifted = token_dfa.lift(automaton(built), tokens, vocab_size)
    nearest = token_dfa.distances(lifted.next, lifted.accept)
    cost = np.where(nearest == DEAD, FAR, nearest).astype(np.int32)
    behind = np.append(cost, FAR)[lifted.next]
    live = behind < FAR
    order = np.argsort(token_dfa.compact(lifted.classes), kind="stable")
    sizes = np.bincount(lifted.classes)
    members = np.split(order, np.cumsum(sizes)[:-1])
    first = np.array([tokens[0] for tokens in members])
    exits = np.where((0 < cost) & (cost < FAR), first[behind.argmin(1)], -1)
    row, words, own = _rows(live, lifted.classes, members)
    size = len(built.ends)
    zero, nothing = np.zeros(size, np.int32), np.zeros((size, 2), np.int32)
    grow = np.where(live, behind, 0).max(1)
    return Lifted(
        built,
        _behind_strings(row),
        words,
        words,
        Lists(_behind_strings(own.at), own.values),
        Lists(nothing, np.zeros((0, 2), np.int32)),
        no_lists(size),
        zero,
        _behind_strings(grow),
        _behind_strings(np.stack([cost, exits], 1)),
        zero,
        np.full((1, 1), rests.NONE, np.int32),
        zero,
        zero,
        *steps(built.moves),
        no_lists(size),
    )


def _behind_strings(values: np.ndarray) -> np.ndarray:
    """Put the values of a machine's own states behind zeros for STRING's."""
    room = [(STRING, 0)] + [(0, 0)] * (values.ndim - 1)
    return np.pad(values, room).astype(np.int32)


def _rows(
    live: np.ndarray, classes: np.ndarray, members: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray, Lists]:
    """Return each state's row of words, the words, and the lists of short ones.

    Args:
        live: bool[Q, C]: the classes that a state may read.
        classes: int32[V].
        members: the tokens of each class.
    """
    known: dict[bytes, int] = {}
    keys = (row.tobytes() for row in np.packbits(live, 1))
    kind = np.array([known.setdefault(key, len(known)) for key in keys])
    kinds = live[np.unique(kind, return_index=True)[1]]
    counts = kinds @ np.array([len(tokens) for tokens in members])
    row, at = np.zeros(len(kinds), np.int32), np.zeros((len(kinds), 2), np.int32)
    words = [np.zeros(-(-len(classes) // 32), np.uint32)]
    listed, size = [np.zeros(0, np.int64)], 0
    for i, (good, count) in enumerate(zip(kinds, counts.tolist())):
        if count > FEW:
            row[i] = len(words)
            words.append(pack(good[classes]))
        elif count:
            at[i] = size, count
            tokens = [members[c] for c in np.flatnonzero(good).tolist()]
            listed.append(np.sort(np.concatenate(tokens)))
            size += count
    token = np.concatenate(listed).astype(np.int32)
    own = Lists(at[kind], np.stack([token, np.ones_like(token)], 1))
    return row[kind], np.stack(words), own
