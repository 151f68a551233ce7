"""Deterministic automata over bytes with a stack: the form of every grammar.

A *rule* reads one value (of a schema, of a nonterminal). Its states read bytes, and a
state may call another rule, which pushes the state; the value that the callee reads
ends with a *label* (which alternatives it was), by which the calling state goes on.

    moves[q, b] = q'          b is read; the value goes on in q'
                  CALL + c    q is pushed; state c reads b again
                  POP + l     the value ended before b, with label l: the state q' that
                              is popped becomes back[q', l], which reads b again
                  DEAD        no text goes on so
    ends[q]     = l           the value is over in q, which reads nothing; else -1
    final[q]    = l           the text may end in q; the value then has label l; else -1

A state that may end its value before a byte that it cannot read has POP there, whatever
the byte is: whether it may follow is the popped state's part. The text is over where
`final` holds from the state down through all that are pushed.

The first states of every machine are those of a JSON string (`STRING`), which differs
between grammars only by where it returns. A call of it counts its characters; they must
lie in `span` of the calling state, so that bounds of a length take no states.

`trim` removes what cannot end. It gives a rule a copy for each set of labels that its
callers can go on with, so no value ends with a label that its caller cannot use.
"""

from typing import NamedTuple

import numpy as np

from models.errors import ConstraintError

DEAD = -1
CALL, POP = 1 << 24, 1 << 25  # added to a state, to a label
KINDS = CALL | POP
MOST_LABELS = 31
ANY_LENGTH = (0, 2**30)

# States of STRING: before its quote, inside, behind its end; then escapes and forms.
QUOTE, BODY, OVER, ESCAPE, HEX4, HEX3, HEX2, HEX1 = range(8)
HEX_D, HIGH2, HIGH1, LOW_SLASH, LOW_U, LOW_D, LOW_C = range(8, 15)  # surrogates
TAIL1, TAIL2, TAIL3, TAIL_E0, TAIL_ED, TAIL_F0, TAIL_F4 = range(15, 22)  # of UTF-8
STRING = 22

Moves = dict[int, int]


class ByteMachine(NamedTuple):
    """A deterministic automaton with a stack, over bytes; see the module's page."""

    moves: np.ndarray  # int32[Q, 256]
    ends: np.ndarray  # int32[Q]: label | -1
    final: np.ndarray  # int32[Q]: label | -1
    back: np.ndarray  # int32[Q, L]: where a calling state goes on; DEAD
    span: np.ndarray  # int32[Q, 2]: characters of a string that q calls
    start: int  # DEAD: no text
    need: np.ndarray  # int32[Q]: states that finishing the value pushes, at the worst
    cost: np.ndarray  # int32[Q]: bytes that finishing the value takes, at the worst
    exit: np.ndarray  # int32[Q]: the first of these bytes; -1: the value may be over


class Config(NamedTuple):
    """Where a machine is in a text: its state, the calling states, characters read."""

    state: int  # DEAD: no text goes on so
    stack: tuple[int, ...] = ()
    chars: int = 0  # of the open string


def returned(machine: ByteMachine, at: Config) -> Config:
    """Return from values that are over where `at` is."""
    while at.state != DEAD and machine.ends[at.state] >= 0 and at.stack:
        at = _popped(machine, at, machine.ends[at.state])
    return at


def _popped(machine: ByteMachine, at: Config, label: int) -> Config:
    caller = at.stack[-1]
    low, high = machine.span[caller]
    if at.state < STRING and not low <= at.chars <= high:
        return Config(DEAD)
    return Config(int(machine.back[caller, label]), at.stack[:-1], at.chars)


def read(machine: ByteMachine, at: Config, data: bytes) -> Config:
    """Return where the machine is behind the bytes `data`, from `at`; the reference.

    There is no bound on the stack here.
    """
    for byte in data:
        while at.state != DEAD:
            to = int(machine.moves[at.state, byte])
            if to == DEAD:
                return Config(DEAD)
            if to & CALL:
                at = Config(to - CALL, (*at.stack, at.state), 0)
            elif to & POP:
                if not at.stack:
                    return Config(DEAD)
                at = _popped(machine, at, to - POP)
            else:
                chars = at.chars + (at.state == BODY and to != OVER)
                most = machine.span[at.stack[-1], 1] if at.stack else ANY_LENGTH[1]
                if at.state == BODY and chars > most:
                    return Config(DEAD)
                at = returned(machine, Config(to, at.stack, chars))
                break
    return at


def is_final(machine: ByteMachine, at: Config) -> bool:
    """Return whether the text may end at `at`."""
    while at.state != DEAD and at.stack and machine.final[at.state] >= 0:
        at = _popped(machine, at, machine.final[at.state])
    return at.state != DEAD and machine.final[at.state] >= 0 and not at.stack


def accepts(machine: ByteMachine, data: bytes) -> bool:
    """Return whether `data` is a whole text of the machine."""
    if machine.start == DEAD:
        return False
    return is_final(machine, read(machine, Config(machine.start), data))


def bytes_read(machine: ByteMachine) -> set[int]:
    """Return the bytes that occur in some text."""
    is_known = np.zeros(len(machine.ends), bool)
    seen = np.zeros(256, bool)
    states = np.array([machine.start])
    while len(states):
        is_known[states] = True
        rows = machine.moves[states]
        is_read = (rows != DEAD) & (rows & POP == 0)
        seen |= is_read.any(0)
        back = machine.back[states]
        then = np.append(rows[is_read] & ~KINDS, back[back != DEAD])
        states = np.unique(then[~is_known[then]])
    return set(np.flatnonzero(seen).tolist())


def check_spelled(machine: ByteMachine, tokens: np.ndarray, name: str) -> None:
    """Raise ConstraintError if a byte that is read has no token in `tokens` [256]."""
    missing = bytes_read(machine) - set(np.flatnonzero(tokens >= 0).tolist())
    if missing:
        shown = ", ".join(f"{byte:#04x}" for byte in sorted(missing)[:8])
        more = f" and {len(missing) - 8} more" if len(missing) > 8 else ""
        raise ConstraintError(
            f"the vocabulary has no token for the bytes {shown}{more} that {name} "
            "reads: use a tokenizer that has every byte"
        )
