"""Lark grammars: what is read, and how terminals are told apart."""

import re

import pytest

from decoding.automata import (
    byte_machine,
    grammar_compiler,
    lark_syntax,
    positions,
)
from decoding.automata.grammar_rules import Call, Choice, Lexeme, Repeat, Sequence
from models.errors import ConstraintError
from tests.decoding.automata import grammar_oracle

CALC = """
start: sum
?sum: product | sum "+" product -> add | sum "-" product -> subtract
?product.2: atom | product ("*" | "/") atom
!atom: NUMBER -> number | "-" atom | "(" sum ")" | NAME "(" _list{sum, ","} ")"
_list{item, mark}: item (mark item)*
NAME.1: LETTER ~ 1..3
LETTER: "a".."d"
%import common.NUMBER
%import common (WS_INLINE, CPP_COMMENT)  // a comment
%ignore WS_INLINE
%ignore CPP_COMMENT
"""


def test_verdicts_are_those_of_the_rules():
    grammar = lark_syntax.parse_rules(CALC, "root")
    assert grammar.start == "start"
    assert grammar.ignored == ("WS_INLINE", "CPP_COMMENT")
    oracle = grammar_oracle.Oracle(grammar)
    texts = grammar_oracle.Writer(grammar, seed=1).texts(200, longest=40)
    machine = grammar_compiler.compile_grammar("lark", CALC)
    verdicts = [oracle.accepts(text) for text in texts]
    assert 20 < sum(verdicts) < 180
    assert [byte_machine.accepts(machine, text) for text in texts] == verdicts


WORDS = """
start: statement*
statement: "if" NAME "then" statement | NAME "=" value ";" | "int" NAME ";"
value: NAME | NUMBER | NUMBER ".." NUMBER | "<" value | "<=" value
NAME: /[a-z][a-z0-9]*/
NUMBER: /[0-9]+/
%ignore " "
"""


def reference(text: str) -> bool:
    """Read WORDS by hand: the longest word first, keywords where they may stand."""
    tokens = re.findall(r"[a-z][a-z0-9]*|[0-9]+|\.\.|<=|[=;<]|[^ ]", text)
    at = 0

    def take(pattern: str) -> bool:
        nonlocal at
        is_next = at < len(tokens) and re.fullmatch(pattern, tokens[at]) is not None
        at += is_next
        return is_next

    def value() -> bool:
        while take("<=|<"):
            pass
        if take("[a-z][a-z0-9]*"):
            return True
        return take("[0-9]+") and (not take(r"\.\.") or take("[0-9]+"))

    def statement() -> bool:
        name = "[a-z][a-z0-9]*"
        if take("if"):
            return take(name) and take("then") and statement()
        if take("int"):
            return take(name) and take(";")
        return take(name) and take("=") and value() and take(";")

    while at < len(tokens):
        if not statement():
            return False
    return True


WORD_TEXTS = [
    "int a;", "inta=1;", "int=1;", "int a=1;", "if a then b=c;", "ifa=1;", "if=1;",
    "if if then x=then;", "x = int ;", "x=1..2;", "x=1 . . 2;", "x=<=1;", "x=< =1;",
    "x=<<=y;", "int int;", "int then;", "then=1;", "if a then b=c", "x=12 3;", "",
    "if a then int b;", "intx;", "if x1 then y2=z3;x=1;", "x=1.2;", " x=1;",
]  # fmt: skip


def test_keywords_and_the_longest_terminal():
    machine = grammar_compiler.compile_grammar("lark", WORDS)
    verdicts = [byte_machine.accepts(machine, text.encode()) for text in WORD_TEXTS]
    assert verdicts == [reference(text) for text in WORD_TEXTS]
    assert 8 < sum(verdicts) < len(verdicts) - 6


def test_fault_terminals_end_at_any_byte(monkeypatch):
    """Planted: nothing of what the terminals read so far is looked at."""
    monkeypatch.setattr(
        positions.Positions, "lexed", lambda self, at: positions.BETWEEN
    )
    machine = grammar_compiler.compile_grammar("lark", WORDS)
    verdicts = [byte_machine.accepts(machine, text.encode()) for text in WORD_TEXTS]
    assert verdicts != [reference(text) for text in WORD_TEXTS]


def test_expressions():
    grammar = lark_syntax.parse_rules(
        'start: [a] b~2 ("x"i | /y/) c*\na: "k"\n  | \nb: K\nc: "k"\nK: "k"\n', "start"
    )
    k = Lexeme("'k'")
    assert grammar.rules == {
        "start": Sequence(
            (
                Repeat(Call("a"), 0, 1),
                Repeat(Call("b"), 2, 2),
                Choice((Lexeme("'x'i"), Lexeme("/(?:y)/"))),
                Repeat(Call("c"), 0, None),
            )
        ),
        "a": Choice((k, Sequence(()))),
        "b": k,
        "c": k,
    }
    assert grammar.terminals["'k'"].is_literal and grammar.terminals["'x'i"].is_literal
    assert not grammar.terminals["/(?:y)/"].is_literal


REFUSED = {
    "start: _INDENT\n%declare _INDENT _DEDENT": "_INDENT is declared, not defined",
    "start: A\n%import .other.A": "only %import common",
    "start: A\n%import python.A": "only %import common",
    "start: A\n%import common.WORDS -> A": "common has no 'WORDS'",
    'start: "a"\n%override start: "b"': "%override is not supported",
    "start: B": "'B' is not defined",
    "start: b": "'b' is not defined",
    "start: A\nA: A": "it may call other terminals",
    "start: A\nA: start": "it may call other terminals",
    "start: A\nA: /a(?=b)/": "look-around",
    "start: A\nA: /a*/": "matches the empty text",
    'start: "a': "unknown symbol",
    'start: ("a"': "expected \\)",
    'start "a"': "expected :",
    'start: "a" -> ': "expected a name",
    'start: "b".."a"': "is no range",
    'start: "a" ~ 3..2': "wrong order",
    'start: t{"a"}\nt{x, y}: x y': "takes 2 arguments, not 1",
    'start: t{"a"}\nt{x}: x | t{u{x}}\nu{x}: x x': "ever new rules",
    'root_: "a"': "it starts with 'root', which is no rule",
}


@pytest.mark.parametrize("source", REFUSED)
def test_refusals(source):
    with pytest.raises(ConstraintError, match=REFUSED[source]):
        lark_syntax.parse_rules(source, "root")
