"""Definitions of Lark grammars, statement by statement."""

import pytest

from decoding.automata.lark_reader import Reader
from models.errors import ConstraintError


def read(source: str) -> Reader:
    reader = Reader(source)
    reader.statements()
    return reader


def test_definitions():
    reader = read(
        '?a{x, y}.2: x ("k"i | /b\\/c/is) -> alias // why\n'
        "  | y~2..3\n\n"
        'T: "\\n" .. "z"\n%ignore T\n%declare U V\n%import common (INT, WS)\n'
        "%import common.INT -> N"
    )
    a = reader.definitions["a"]
    assert a.parameters == ("x", "y")
    pattern = ("regexp", "(?is:b\\/c)")
    either = ("choice", (("string", "k", True), pattern))
    assert a.node == (
        "choice",
        (
            ("sequence", (("name", "x"), either)),
            ("repeat", ("name", "y"), 2, 3),
        ),
    )
    assert reader.definitions["T"].node == ("range", "\n", "z")
    assert reader.ignored == [("name", "T")]
    assert reader.declared == {"U", "V"}
    assert {"INT", "WS", "N"} <= set(reader.definitions)


def test_lines_go_on_inside_parentheses():
    assert read('a: ("b"\n "c"\n)\n').definitions["a"].node[0] == "sequence"


@pytest.mark.parametrize(
    "source, message",
    [
        ('a: "b" c: "d"', "expected the end of the line"),
        ("a: /x/l", "flags are"),
        ('a: "\\xZZ"', "no string"),
        ('a: "ab".."c"', "a range takes two characters"),
        ('a: "b" ~ 9999', "of 2000 at most"),
        ("a: " + "(" * 90 + '"b"' + ")" * 90, "parentheses within another"),
    ],
)
def test_refusals_name_the_line(source, message):
    with pytest.raises(ConstraintError, match=f"line 2.*{message}"):
        read("\n" + source)
