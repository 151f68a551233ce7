"""Whole grammars against a recogniser that reads their rules alone."""

import re

import numpy as np
import pytest

from decoding.automata import (
    byte_machine,
    grammar_compiler,
    grammar_syntax,
    subsets,
)
from models.errors import ConstraintError
from tests.decoding.automata import grammar_oracle

GRAMMARS = {
    "brackets": 'root ::= "(" root ")" root | "[" root "]" | ""',
    "json": r"""
        root ::= ws value
        value ::= object | array | string | number | ("true" | "false" | "null") ws
        object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}" ws
        array ::= "[" ws (value ("," ws value)*)? "]" ws
        string ::= "\"" ([^"\\\x00-\x1F] | "\\" (["\\bfnrt/] | "u" hex))* "\"" ws
        hex ::= [0-9a-f]{4}
        number ::= "-"? ("0" | [1-9] [0-9]{0,3}) ("." [0-9]+)? ([eE] [-+]? [0-9]+)? ws
        ws ::= [ \n]{0,2}
    """,
    "arithmetic": """
        root ::= sum
        sum ::= product (("+" | "-") product)*
        product ::= power ("*" power)*
        power ::= atom ("^" power)?
        atom ::= [a-c] | [0-9]+ | "(" sum ")" | "-" atom
    """,
    "nullable": """
        root ::= a b a? | b "x" root
        a ::= b? ("y" a ";")? c
        b ::= c c | "z"?
        c ::= ("w" | "") b2
        b2 ::= "" | "v" b2
    """,
    "left": """
        root ::= root "+" term | term
        term ::= term "*" atom | call
        call ::= atom | call "(" root ")" | args
        args ::= call "[" root "]" | "n"
        atom ::= "a" | "(" root ")"
    """,
    "hidden left": """
        root ::= blank root "x" | "y" | "(" root ")"
        blank ::= gap? gap
        gap ::= "" | gap gap
    """,
    "shared beginning": """
        root ::= "f(" city ")" | "f(" state ")!"
        city ::= "c" | "in(" state ")" | "in(" river ")c"
        state ::= "s" | "in(" city ")" | "in(" river ")s"
        river ::= "r" | "in(" city ")r"
    """,
    "late push": """
        root ::= flat | deep
        flat ::= "(" [a-c]* ")" "."
        deep ::= "(" inner ")" ";"
        inner ::= [a-b]* ("(" inner ")")? [a-b]*
    """,
    "characters": """
        root ::= word ("-" root)?
        word ::= [^\\x00-\\x7Fé€] | [А-Яа-я]+ | "€" [\\u00e0-\\u00ff]{1,2}
            | [^a-z-] "." | [\\U0001F600-\\U0001F64F]
    """.replace("\n            |", " |"),
}


def machine_of(name: str) -> byte_machine.ByteMachine:
    return grammar_compiler.compile_grammar("gbnf", dedented(GRAMMARS[name]))


def dedented(source: str) -> str:
    return "\n".join(line.strip() for line in source.strip().splitlines())


def texts_of(name: str, count: int = 250):
    """Texts of a grammar and mutations of them, with the oracle's verdicts."""
    grammar = grammar_syntax.parse_rules(dedented(GRAMMARS[name]), "root")
    oracle = grammar_oracle.Oracle(grammar)
    texts = grammar_oracle.Writer(grammar, seed=3).texts(count, longest=40)
    return [(text, oracle.accepts(text)) for text in texts]


def differences(machine: byte_machine.ByteMachine, texts) -> int:
    return sum(byte_machine.accepts(machine, text) != valid for text, valid in texts)


@pytest.mark.parametrize("name", GRAMMARS)
def test_verdicts_are_those_of_the_rules(name):
    texts = texts_of(name)
    verdicts = [valid for _, valid in texts]
    assert 20 < sum(verdicts) < len(verdicts) - 20
    assert differences(machine_of(name), texts) == 0


@pytest.mark.parametrize("name", GRAMMARS)
def test_every_prefix_goes_on_to_an_end(name):
    """No text is stuck: `cost` falls by a byte read, down to an end."""
    machine = machine_of(name)

    def left(at: byte_machine.Config) -> int:
        callers = (machine.back[caller] for caller in at.stack)
        behind = [max(machine.cost[to] for to in row if to >= 0) for row in callers]
        return int(machine.cost[at.state]) + sum(map(int, behind))

    for text, _ in texts_of(name, 30):
        at = byte_machine.Config(machine.start)
        for byte in text:
            after = byte_machine.read(machine, at, bytes([byte]))
            if after.state == byte_machine.DEAD:
                break
            at = after
        for _ in range(200):
            if byte_machine.is_final(machine, at):
                break
            ways = [byte_machine.read(machine, at, bytes([b])) for b in range(256)]
            at = min((way for way in ways if way.state != byte_machine.DEAD), key=left)
        assert byte_machine.is_final(machine, at)


def test_fault_rest_by_the_wrong_label():
    """Planted: a calling state goes on as if another alternative had ended."""
    machine, texts = machine_of("shared beginning"), texts_of("shared beginning")
    back = machine.back.copy()
    both = (back[:, 0] >= 0) & (back[:, 1] >= 0)
    assert both.any()
    back[both, :2] = back[both, 1::-1]
    assert differences(machine._replace(back=back), texts) > 0


def test_fault_a_late_push_that_is_lost(monkeypatch):
    """Planted: calls are pushed at once; alternatives outside of them are dropped."""
    good = subsets.Subsets.move

    def at_once(self, state, readers, mask, kind):
        inside = tuple(reader for reader in readers if reader[0][1])
        return good(self, state, inside or readers, mask, kind)

    texts = texts_of("late push")
    monkeypatch.setattr(subsets.Subsets, "move", at_once)
    assert differences(machine_of("late push"), texts) > 0


def test_heights_are_those_of_the_brackets():
    """One push a bracket: what is recursive in last place pushes nothing."""
    machine = machine_of("arithmetic")
    deepest = max(
        len(byte_machine.read(machine, byte_machine.Config(machine.start), text).stack)
        for text in (b"a+b*c^a^b^c-(a+-b", b"---a^b*a", b"((a")
    )
    assert deepest == 2
    assert machine.need[machine.start] <= 1


REFUSED = {
    "an end at the same byte": (
        'root ::= "a" root "a" | "b" root "b" | "a" | "b"',
        r"byte '[ab]' a value of 'root' may end, or go on in 'root'",
    ),
    "alternatives ever further apart": (
        'root ::= [(]* [)]* "!" | deep\ndeep ::= "(" deep ")" | ""',
        r"byte '.' the text may be in '\w+' or '\w+', which are over 4 calls apart",
    ),
    "no text": ('root ::= "a" root', "no text is complete"),
    "no rule": ("root ::= rot", "root calls 'rot', which is no rule"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_name_the_reason(name):
    source, message = REFUSED[name]
    with pytest.raises(ConstraintError, match=message):
        grammar_compiler.compile_grammar("gbnf", source)


def test_an_unknown_kind_is_refused():
    with pytest.raises(ConstraintError, match="use gbnf, lark, ebnf or regex"):
        grammar_compiler.compile_grammar("abnf", "root = a")


def test_regular_expressions_have_an_empty_stack():
    pattern = r"(ab|[^\x00-\x7f]){1,3}-?\d"
    machine = grammar_compiler.compile_grammar("regex", pattern)
    assert not (machine.moves & byte_machine.CALL)[machine.moves >= 0].any()
    rng = np.random.default_rng(0)
    letters = ["ab", "a", "é", "€", "-", "1", "😀"]
    verdicts = []
    for _ in range(300):
        text = "".join(rng.choice(letters, rng.integers(1, 4)))
        text += str(rng.choice(["1", "-1", "", "1a"]))
        verdicts.append(re.fullmatch(pattern, text, re.ASCII) is not None)
        assert byte_machine.accepts(machine, text.encode()) == verdicts[-1]
    assert 10 < sum(verdicts) < 290
    with pytest.raises(ConstraintError, match="matches no text"):
        grammar_compiler.compile_grammar("regex", "[^\x00-\U0010ffff]")
