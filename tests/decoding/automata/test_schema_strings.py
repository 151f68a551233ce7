"""decoding/automata/schema_strings.py: strings are free, words, or an automaton's."""

import json

import pytest

from decoding.automata import schema_strings
from decoding.automata.byte_machine import STRING, accepts
from decoding.automata.ecma_syntax import parse
from decoding.automata.json_schema import compile_schema
from decoding.automata.schema_formulas import TRUE, Logic
from decoding.automata.schema_strings import Free, Words, holds, plan


def _reads(machine, text) -> bool:
    return accepts(machine, json.dumps(text, ensure_ascii=False).encode())


def test_plans():
    logic = Logic()
    words = logic.atom(("words", frozenset(["a", "bb"])))
    length = logic.atom(("length", 2, None))
    pattern = logic.atom(("pattern", parse("^b")))
    assert plan(logic, (TRUE,)) == Free(0, 2**30, ())
    assert plan(logic, (logic.all([length, logic.atom(("length", 0, 4))]),)) == Free(
        2, 4, ()
    )
    assert plan(logic, (logic.all([words, length]),)) == Words({"bb": ()})
    assert plan(logic, (words, length, pattern)) == Words(
        {"a": (False, False), "bb": (True, True)}
    )
    assert plan(logic, (logic.any([words, pattern]),)) is None
    assert holds(logic, logic.all([pattern, length]), "bc")


def test_wide_bounds_of_alternatives_are_not_counted():
    bounds = [
        {"properties": {"a": {"maxLength": high}, "b": {"type": kind}}}
        for high, kind in ((1_000, "null"), (500, "string"))
    ]
    machine = compile_schema({"type": "object", "anyOf": bounds})
    assert len(machine.moves) < 200
    assert _reads(machine, {"a": "x" * 500, "b": None})
    assert not _reads(machine, {"a": "x" * 1_001, "b": None})
    narrow = [{**bounds[0], "required": ["c"]}, {"properties": {"a": {"maxLength": 3}}}]
    machine = compile_schema({"type": "object", "anyOf": narrow})
    assert _reads(machine, {"a": "x" * 4, "c": 1})
    assert not _reads(machine, {"a": "x" * 4})


def test_bounds_of_a_free_string_take_no_states():
    sizes = [
        len(compile_schema({"type": "string", "maxLength": n}).moves) for n in (1, 999)
    ]
    assert sizes[0] == sizes[1] == STRING + 2


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ({"pattern": "^[a-c]+$", "minLength": 2}, ["ab", "abc"], ["a", "xy"]),
        ({"pattern": "^[a-c]+$", "maxLength": 3}, ["abc"], ["abca", ""]),
        ({"pattern": "b", "enum": ["ab", "c", "b"]}, ["ab", "b"], ["c", "bb"]),
        ({"not": {"enum": ["ab", "é"]}}, ["a", "abc", "", "e"], ["ab", "é"]),
        ({"oneOf": [{"pattern": "a"}, {"pattern": "b"}]}, ["xa", "b"], ["ab", "c"]),
        ({"anyOf": [{"maxLength": 2}, {"const": "long word"}]}, ["", "é"], ["abc"]),
        ({"pattern": "^(?!no)", "minLength": 1}, ["yes", "n"], ["no", "none", ""]),
        ({"pattern": "\\\\"}, ["a\\b"], ["ab"]),
        ({"pattern": "^.$"}, ["é", '"', "\t"], ["", "ab", "\n"]),
    ],
)  # fmt: skip
def test_strings(schema, valid, invalid):
    machine = compile_schema({"type": "string", **schema})
    assert all(_reads(machine, text) for text in valid)
    assert not any(_reads(machine, text) for text in invalid)


def test_strings_tell_alternatives_of_an_object_apart():
    schema = {
        "type": "object",
        "anyOf": [
            {
                "properties": {"k": {"const": kind}, "v": {"type": kind}},
                "required": ["k"],
            }
            for kind in ("string", "null", "boolean", "integer")
        ],
    }
    machine = compile_schema(schema)
    assert _reads(machine, {"k": "null", "v": None})
    assert not _reads(machine, {"k": "null", "v": 1})


LONG = {"type": "string", "pattern": "^[a-z]+(-[a-z]+)*$", "maxLength": 50_000}


def test_long_counters_beside_patterns_are_shortened():
    machine = compile_schema(LONG)
    assert len(machine.moves) < 3 * schema_strings.MOST_COUNTED
    assert _reads(machine, "a-" * 200 + "b") and not _reads(machine, "a-")


def test_counters_of_wide_characters_are_narrowed():
    words = {"pattern": r"^(?:\S+\s+){0,99}\S+$", "maxLength": 900}
    machine = compile_schema({"type": "string", **words})
    assert len(machine.moves) < 2 * schema_strings.MOST_COUNTED
    assert _reads(machine, "one or more words") and not _reads(machine, "é")
    assert not _reads(machine, "") and not _reads(machine, "a ")


def test_fault_a_length_that_is_not_counted(monkeypatch):
    """Planted: the counter beside a pattern is dropped."""

    def uncounted(logic, formulas):
        drop = lambda atom: TRUE if atom[0] == "length" else logic.atom(atom)
        return tuple(logic.replaced(formula, drop) for formula in formulas), False

    monkeypatch.setattr(schema_strings, "_shortened", uncounted)
    machine = compile_schema({**LONG, "maxLength": 3})
    assert _reads(machine, "abcd")
