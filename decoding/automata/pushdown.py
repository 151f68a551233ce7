"""Construction of pushdown machines over bytes (`byte_machine.py`), state by state."""

from collections.abc import Iterable

from decoding.automata import trimming
from decoding.automata.byte_machine import (
    ANY_LENGTH,
    BODY,
    ESCAPE,
    HEX1,
    HEX2,
    HEX3,
    HEX4,
    HEX_D,
    HIGH1,
    HIGH2,
    LOW_C,
    LOW_D,
    LOW_SLASH,
    LOW_U,
    OVER,
    QUOTE,
    STRING,
    TAIL1,
    TAIL2,
    TAIL3,
    TAIL_E0,
    TAIL_ED,
    TAIL_F0,
    TAIL_F4,
    ByteMachine,
    Moves,
)


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
            raise trimming.too_large(self.most)
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
            ConstraintError: a value has more than 31 labels, or contexts need more
                than `most` states.
        """
        built = trimming.Built(self.moves, self.ends, self.final, self.back, self.span)
        return trimming.trim(built, start, self.most)
