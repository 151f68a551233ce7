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

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from decoding.automata.trimming import CALL, DEAD, POP, Built, Moves, trim
from models.errors import ConstraintError

ANY_LENGTH = (0, 2**30)

# States of STRING: before its quote, inside, behind its end; then escapes and forms.
QUOTE, BODY, OVER, ESCAPE, HEX4, HEX3, HEX2, HEX1 = range(8)
HEX_D, HIGH2, HIGH1, LOW_SLASH, LOW_U, LOW_D, LOW_C = range(8, 15)  # surrogates
TAIL1, TAIL2, TAIL3, TAIL_E0, TAIL_ED, TAIL_F0, TAIL_F4 = range(15, 22)  # of UTF-8
STRING = 22


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


def _span(low: int, high: int) -> range:
    return range(low, high + 1)


_HEX = b"0123456789abcdefABCDEF"


def string_moves() -> list[Moves]:
    """Return the moves of STRING: RFC 8259's strings of exact UTF-8, pairs whole."""
    states: list[Moves] = [{} for _ in range(STRING)]

    def put(at: int, read: Iterable[int], to: int) -> None:
        states[at].update(dict.fromkeys(read, to))

    put(QUOTE, b'"', BODY)
    put(BODY, set(_span(0x20, 0x7F)) - set(b'"\\'), BODY)
    put(BODY, b'"', OVER)
    put(BODY, b"\\", ESCAPE)
    put(ESCAPE, b'"\\/bfnrt', BODY)
    put(ESCAPE, b"u", HEX4)
    put(HEX4, set(_HEX) - set(b"dD"), HEX3)
    put(HEX4, b"dD", HEX_D)
    put(HEX3, _HEX, HEX2)
    put(HEX2, _HEX, HEX1)
    put(HEX1, _HEX, BODY)
    put(HEX_D, b"01234567", HEX2)
    put(HEX_D, b"89abAB", HIGH2)
    put(HIGH2, _HEX, HIGH1)
    put(HIGH1, _HEX, LOW_SLASH)
    put(LOW_SLASH, b"\\", LOW_U)
    put(LOW_U, b"u", LOW_D)
    put(LOW_D, b"dD", LOW_C)
    put(LOW_C, b"cdefCDEF", HEX2)
    put(BODY, _span(0xC2, 0xDF), TAIL1)
    put(BODY, _span(0xE1, 0xEF), TAIL2)
    put(BODY, _span(0xF1, 0xF3), TAIL3)
    for lead, state in ((0xE0, TAIL_E0), (0xED, TAIL_ED)):
        put(BODY, [lead], state)
    for lead, state in ((0xF0, TAIL_F0), (0xF4, TAIL_F4)):
        put(BODY, [lead], state)
    put(TAIL1, _span(0x80, 0xBF), BODY)
    put(TAIL2, _span(0x80, 0xBF), TAIL1)
    put(TAIL3, _span(0x80, 0xBF), TAIL2)
    put(TAIL_E0, _span(0xA0, 0xBF), TAIL1)
    put(TAIL_ED, _span(0x80, 0x9F), TAIL1)
    put(TAIL_F0, _span(0x90, 0xBF), TAIL2)
    put(TAIL_F4, _span(0x80, 0x8F), TAIL2)
    return states


class Builder:
    """A machine under construction; its first states are STRING's.

    `moves[q]` maps a byte to a state, `CALL + state` or `POP + label`. `back[q]` maps
    a callee's label to the state in which q goes on. `most` bounds the states.
    """

    def __init__(self, most: int = 50_000) -> None:
        self.moves: list[Moves] = string_moves()
        self.ends = [-1] * STRING
        self.ends[OVER] = 0
        self.final = self.ends[:]
        self.back: list[Moves] = [{} for _ in range(STRING)]
        self.span = [ANY_LENGTH] * STRING
        self.most = most

    def state(self, ends: int = -1, final: int = -1) -> int:
        """Add a state; one that `ends` its value is final as well.

        Raises:
            ConstraintError: there are too many states.
        """
        if len(self.moves) >= self.most:
            raise ConstraintError(
                f"the grammar needs more than {self.most} states: lower its counts or "
                "make it smaller"
            )
        self.moves.append({})
        self.ends.append(ends)
        self.final.append(ends if ends >= 0 else final)
        self.back.append({})
        self.span.append(ANY_LENGTH)
        return len(self.moves) - 1

    def read(self, state: int, read: Iterable[int], to: int) -> None:
        """Go to `to` (a state, CALL + state, POP + label) at the bytes `read`."""
        self.moves[state].update(dict.fromkeys(read, to))

    def otherwise(self, state: int, to: int) -> None:
        """Go to `to` at every byte that `state` has no move for."""
        self.moves[state] = dict.fromkeys(range(256), to) | self.moves[state]

    def text(self, state: int, text: bytes) -> int:
        """Read `text` from `state` through new states; return the last one."""
        for byte in text:
            after = self.moves[state].get(byte)
            if after is None:
                after = self.state()
                self.moves[state][byte] = after
            state = after
        return state

    def machine(self, start: int) -> ByteMachine:
        """Trim and return the machine; its `start` is DEAD if it reads no text.

        Raises:
            ConstraintError: a value has more than 31 labels.
        """
        built = Built(self.moves, self.ends, self.final, self.back, self.span, STRING)
        return ByteMachine(*trim(built, start))


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
                if at.state == BODY and chars > machine.span[at.stack[-1], 1]:
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
    return set(np.flatnonzero((machine.moves != DEAD).any(0)).tolist())


def spelled(machine: ByteMachine, tokens: Iterable[bytes]) -> None:
    """Raise ConstraintError if `tokens` cannot spell every byte that is read."""
    single = {token[0] for token in tokens if len(token) == 1}
    missing = bytes_read(machine) - single
    if missing:
        shown = ", ".join(f"{byte:#04x}" for byte in sorted(missing)[:8])
        raise ConstraintError(
            f"the vocabulary has no token for {len(missing)} bytes that the grammar "
            f"reads ({shown}, …): use a tokenizer that has every byte"
        )
