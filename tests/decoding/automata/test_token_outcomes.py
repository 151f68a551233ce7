"""Outcomes of tokens against the byte machine's own run."""

import itertools

import numpy as np
import pytest

from decoding.automata import byte_machine, grammar_compiler
from decoding.automata.byte_machine import CALL, POP, Config
from decoding.automata.token_outcomes import (
    END_OF_TEXT,
    NO_CALLER,
    NOTHING,
    TokenOutcomes,
)

NESTED = grammar_compiler.compile_grammar(
    "gbnf", 'root ::= "(" root ")" | "[" root "]" | "x" | "x" "y"+'
)
KINDS = '''root ::= a "e" | b "o"
a ::= "(" a ")" | "x"
b ::= "(" b ")" | "y"'''
ALPHABET = b"()[]xy"


def places(outcomes: TokenOutcomes, reading: int) -> set[tuple[int, ...]]:
    """Return the targets of a reading as stacks with their state."""
    stacks = set()
    for number in outcomes.readings[reading].targets:
        target, stack = outcomes.targets[number], []
        while target.caller != NO_CALLER:
            stack.append(target.caller)
            target = outcomes.targets[target.inside]
        stacks.add((*stack, target.inside))
    return stacks


def run(machine, state: int, text: bytes) -> set[tuple[int, ...]]:
    at = byte_machine.read(machine, Config(state), text)
    over = machine.ends[at.state] >= 0 and not at.stack
    return set() if at.state < 0 or over else {(*at.stack, at.state)}


def texts(longest: int) -> list[bytes]:
    return [
        bytes(text)
        for size in range(1, longest + 1)
        for text in itertools.product(ALPHABET, repeat=size)
    ]


def test_targets_are_where_the_bytes_lead():
    """From every state, all texts of four bytes. Planted: calls that push nothing."""
    outcomes, differs = TokenOutcomes(NESTED), False
    for state in range(byte_machine.STRING, len(NESTED.ends)):
        if NESTED.ends[state] >= 0:
            continue
        for text in texts(4)[::3]:
            reading = outcomes.reading(state, outcomes.language([text]))
            wanted = run(NESTED, state, text)
            assert places(outcomes, reading) == wanted
            differs |= {place[-1:] for place in wanted} != wanted
    assert differs


def test_a_language_reads_what_its_strings_do():
    """Planted: all but one of the strings."""
    outcomes, strings = TokenOutcomes(NESTED), [b"((", b"[(x", b"xy", b"x", b"(x)"]
    start = NESTED.start
    parts = [outcomes.reading(start, outcomes.language([s])) for s in strings]
    of_parts = [outcomes.readings[reading] for reading in parts]
    joined = frozenset().union(*(part.targets for part in of_parts))
    whole = outcomes.readings[outcomes.reading(start, outcomes.language(strings))]
    few = outcomes.readings[outcomes.reading(start, outcomes.language(strings[1:]))]
    assert whole.targets == joined != few.targets


def test_equal_languages_are_one_node():
    """By byte classes: what the machine cannot tell apart is the same."""
    outcomes = TokenOutcomes(NESTED)
    assert outcomes.language([b"ab", b"(c"]) == outcomes.language([b"(~", b"!?"])
    assert outcomes.language([b"(x", b"yx"]) == outcomes.language([b"yx", b"(x"])
    assert outcomes.language([b"x"]) != outcomes.language([b"y"])
    assert outcomes.language([b"x", b"xy"]) != outcomes.language([b"xy"])


def exit_of(machine, state: int, text: bytes) -> tuple[int, bytes] | None:
    """Return the label with which the value of a state ends in a text, and the rest."""
    at = Config(state)
    for i, byte in enumerate(text):
        reads = False
        while not reads:
            if at.state < 0:
                return None
            to = int(machine.moves[at.state, byte])
            reads = not to & (CALL | POP)
            if machine.ends[at.state] >= 0:
                return int(machine.ends[at.state]), text[i:]
            if to < 0:
                return None
            if to & CALL:
                at = Config(to - CALL, (*at.stack, at.state))
            elif to & POP and not at.stack:
                return to - POP, text[i:]
            elif to & POP:
                at = Config(int(machine.back[at.stack[-1], to - POP]), at.stack[:-1])
        at = byte_machine.returned(machine, Config(to, at.stack))
    is_over = at.state >= 0 and machine.ends[at.state] >= 0
    return (int(machine.ends[at.state]), b"") if is_over else None


def test_exits_are_where_values_end():
    """From every state, texts of four bytes. Planted: rests less a byte."""
    machine = grammar_compiler.compile_grammar("gbnf", KINDS)
    outcomes, exits, differs = TokenOutcomes(machine), set(), False
    for state in range(byte_machine.STRING, len(machine.ends)):
        for text in itertools.product(b"()xye", repeat=4):
            reading = outcomes.reading(state, outcomes.language([bytes(text)]))
            wanted = exit_of(machine, state, bytes(text))
            pairs_read = outcomes.readings[reading].exits
            pairs = [wanted] if wanted else []
            assert pairs_read == {(n, outcomes.language([rest])) for n, rest in pairs}
            differs |= pairs_read != {(n, outcomes.language([r[1:]])) for n, r in pairs}
            exits |= {(n, bool(rest)) for n, rest in pairs}
    assert differs and len({label for label, _ in exits}) > 1


def test_the_end_of_a_text_exits_where_it_may():
    """Planted: everywhere."""
    outcomes = TokenOutcomes(NESTED)
    ends = [
        bool(outcomes.readings[outcomes.reading(q, END_OF_TEXT)].exits)
        for q in range(len(NESTED.ends))
    ]
    assert ends == (NESTED.final >= 0).tolist()
    assert not all(ends)


def test_exits_are_of_one_kind_if_all_callers_go_on_alike():
    """Planted: kinds by label alone."""
    outcomes = TokenOutcomes(NESTED)
    language = outcomes.language
    kinds = [outcomes.kind(0, language([s])) for s in (b")", b"]", b")", b"x")]
    assert kinds[0] == kinds[2] != kinds[1]
    assert kinds[3] == -1  # nothing reads an x behind a value


@pytest.mark.parametrize("size", [400, 1000])
def test_long_tokens_take_no_recursion(size):
    machine = grammar_compiler.compile_grammar("regex", "a*b")
    outcomes = TokenOutcomes(machine)
    long = outcomes.language([b"a" * size + b"b"])
    assert outcomes.readings[outcomes.reading(machine.start, long)].targets
    dead = outcomes.language([b"a" * size + b"c"])
    assert outcomes.reading(machine.start, dead) == NOTHING
    assert np.all(machine.ends[byte_machine.STRING :] < 0)
