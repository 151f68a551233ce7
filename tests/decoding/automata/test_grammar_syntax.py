"""GBNF and EBNF as their programs read them, construct by construct."""

import pytest

from decoding.automata import grammar_syntax
from decoding.automata.grammar_rules import (
    EMPTY,
    POINTS,
    Call,
    Chars,
    Choice,
    Repeat,
    Sequence,
    Text,
)
from models.errors import ConstraintError


def rule(text: str, kind: str = "gbnf"):
    """The expression of `root ::= text`; a, b and c are rules."""
    names = "".join(f"\n{name} ::= [a-z]" for name in "abc")
    return grammar_syntax.parse_rules(f"root ::= {text}{names}\n", "root", kind).rules[
        "root"
    ]


A, B = Call("a"), Call("b")
READ = {
    'a b | "x"': Choice((Sequence((A, B)), Text(b"x"))),
    "(a |)": Choice((A, EMPTY)),
    "a |\n b": Choice((A, B)),
    "(a\n | b # why\n) a": Sequence((Choice((A, B)), A)),
    "a? b* a+": Sequence((Repeat(A, 0, 1), Repeat(B, 0, None), Repeat(A, 1, None))),
    "a{2} b{1,} a{0,3}": Sequence(
        (Repeat(A, 2, 2), Repeat(B, 1, None), Repeat(A, 0, 3))
    ),
    '"ab"*': Repeat(Text(b"ab"), 0, None),  # the literal, not its last letter
    "a{1,2001}": Repeat(A, 1, None),
    "[a-c_\\]^-]": Chars(((45, 46), (93, 94), (94, 95), (95, 96), (97, 100))),
    '[^"\\\\]': Chars(((0, 34), (35, 92), (93, POINTS))),
    "[\\x41\\u00e9\\U0001F600]": Chars(((65, 66), (233, 234), (0x1F600, 0x1F601))),
    '"\\x80\\n\\"é"': Text('\x80\n"é'.encode()),
    ".": Chars(((0, POINTS),)),
    "[]": EMPTY,
    '"\\ud800"': Chars(()),
}


@pytest.mark.parametrize("text", READ)
def test_expressions(text):
    assert rule(text) == READ[text]
    assert rule(text, "ebnf") == READ[text]


REFUSED = {
    "a\n | b": "expected a rule's name",
    "(a": r"expected \)",
    "*": "behind an item",
    '"a': "ends inside",
    '"\\q"': "is no escape",
    '"\\x4"': "2 hexadecimal digits",
    '"\\U00110000"': "above the last code point",
    "a{,2}": "a repetition takes",
    "a{3,2}": "wrong order",
    "a{9999}": "of 2000 at most",
    "<think> a": "tokens are not bytes",
    "d": "root calls 'd', which is no rule",
    "a ]": "must end with its line",
    "(" * 90 + "a" + ")" * 90: "parentheses within another",
}


@pytest.mark.parametrize("text", REFUSED)
def test_refusals(text):
    with pytest.raises(ConstraintError, match=REFUSED[text]):
        rule(text)


def test_names_differ_between_the_kinds():
    source = "root ::= a_b\na_b ::= [a]"
    assert grammar_syntax.parse_rules(source, "root", "ebnf").rules["root"] == Call(
        "a_b"
    )
    with pytest.raises(ConstraintError, match="line 1, '_b"):
        grammar_syntax.parse_rules(source, "root", "gbnf")
    assert rule("a{,2}", "ebnf") == Repeat(A, 0, 2)


def test_the_last_of_two_rules_holds():
    grammar = grammar_syntax.parse_rules('root ::= "a"\r\nroot ::= "b"', "root")
    assert grammar.rules == {"root": Text(b"b")}


def test_the_start_must_be_a_rule():
    with pytest.raises(ConstraintError, match=r"'rot'.*did you mean 'root'"):
        grammar_syntax.parse_rules('root ::= "a"', "rot")
