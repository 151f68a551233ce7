"""decoding/automata/schema_objects.py: names in order, free names, counts, repeats."""

import json

import pytest

from decoding.automata import schema_objects
from decoding.automata.byte_machine import accepts
from decoding.automata.json_schema import compile_schema


def _reads(schema, text) -> bool:
    return accepts(compile_schema(schema), text.encode())


AB = {"properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        (AB, ['{"a":1,"b":""}', '{"b":""}', '{"a":1,"x":[]}'], ['{"b":"","a":1}']),
        ({**AB, "additionalProperties": False}, ['{"a":1}', "{}"], ['{"x":1}']),
        ({**AB, "additionalProperties": {"type": "null"}}, ['{"x":null}'], ['{"x":1}']),
        ({**AB, "required": ["b", "c"]}, ['{"b":"","c":1}'], ['{"b":""}', '{"c":1}']),
        ({"required": ["c"], **AB}, ['{"a":1,"c":1}'], ['{"c":1,"a":1}']),
        ({"maxProperties": 1}, ["{}", '{"a":1}'], ['{"a":1,"b":1}']),
        ({"minProperties": 1}, ['{"a":1}'], ["{}"]),
        ({**AB, "minProperties": 3}, ['{"a":1,"b":"","c":0}'], ['{"a":1,"b":""}']),
        (
            {"patternProperties": {"^x": {"type": "null"}, "y$": {"minimum": 3}}},
            ['{"x":null,"y":3,"z":0}', '{"xy":null}'],
            ['{"x":1}', '{"y":2}', '{"xy":3}'],
        ),
        (
            {"patternProperties": {"^x": {}}, "additionalProperties": False, **AB},
            ['{"a":1,"x1":0}'],
            ['{"y":1}', '{"b":1}', '{"x1":0,"a":1}'],
        ),
        (
            {"properties": {"a": {}}, "patternProperties": {"a": {"type": "null"}}},
            ['{"a":null,"ba":null}'],
            ['{"a":1}', '{"ba":1}'],
        ),
    ],
)
def test_members(schema, valid, invalid):
    for text in valid:
        assert _reads({"type": "object", **schema}, text), text
    for text in invalid:
        assert not _reads({"type": "object", **schema}, text), text


@pytest.mark.parametrize(
    "text",
    ['{"\\u0061":"x"}', '{"x":0,"a":"x"}', '{"a":1,"a":"x"}', '{"\\u0041":0}',
     '{"s\\/":1}', '{"s/":1}', '{"\\u0073/":1}'],
)  # fmt: skip
def test_no_spelling_smuggles_a_declared_name(text):
    schema = {"properties": {"a": {"type": "integer"}, "A": False, "s/": False}}
    machine = compile_schema(schema)
    assert not accepts(machine, text.encode())


def test_free_names_beside_declared_ones():
    schema = {"properties": {"ab": False, "é": False, 'a"': False, "\x01": False}}
    machine = compile_schema(schema)
    for name in ("a", "abc", "b", "\n", "ê", "éé", "a\\", "\x02b", "x\u2028", ""):
        text = json.dumps({name: 1}, ensure_ascii=False)
        assert accepts(machine, text.encode()) == (name != "\x02b"), name
    assert accepts(machine, b'{"x\\u0061": 1}')


def test_a_repeated_name_counts_once():
    schema = {"minProperties": 2}
    assert not _reads(schema, '{"a":1,"a":2}')
    assert _reads({**AB, **schema}, '{"a":1,"x":2}')


def test_a_repeated_name_does_not_undo_a_violation():
    schema = {"not": {"additionalProperties": {"type": "integer"}}}
    assert _reads(schema, '{"a":1,"b":"x"}')
    assert not _reads(schema, '{"b":"x","b":1}')


def test_fault_a_violation_that_always_lasts(monkeypatch):
    """Planted: no name is taken for one that may be repeated."""
    behind = schema_objects.behind
    monkeypatch.setattr(
        schema_objects, "behind", lambda *args: behind(*args[:4], False)
    )
    schema = {"not": {"additionalProperties": {"type": "integer"}}}
    assert _reads(schema, '{"b":"x","b":1}')


def test_alternatives_that_are_over_are_forgotten():
    parts = [{"properties": {f"n{i}": {"type": "null"}}} for i in range(12)]
    machine = compile_schema({"type": "object", "anyOf": parts})
    assert len(machine.moves) < 700
    assert accepts(machine, b'{"n0":1,"n1":1,"n5":null}')
    every = ",".join(f'"n{i}":1' for i in range(12))
    assert not accepts(machine, f"{{{every}}}".encode())


def test_many_optional_names_share_states():
    names = {f"property number {i}": {"type": "string"} for i in range(60)}
    machine = compile_schema({"properties": names, "additionalProperties": False})
    assert len(machine.moves) < 1_500
    machine = compile_schema({"properties": names})
    assert len(machine.moves) < 1_600
