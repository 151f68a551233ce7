"""decoding/automata/schema_keywords.py: each keyword at its bounds, by kind."""

import json
from decimal import Decimal

import pytest

from decoding.automata.byte_machine import accepts
from decoding.automata.json_schema import compile_schema
from decoding.automata.schema_formulas import FALSE, TRUE, Logic
from decoding.automata.schema_keywords import KINDS, Keywords, decimal, kind_of
from decoding.automata.schema_reading import Reader
from models.errors import ConstraintError

_OLD = {"$schema": "http://json-schema.org/draft-04/schema#"}
CASES = [
    ({"type": ["string", "null"]}, ["a", None], [1, {}]),
    ({"type": "boolean"}, [True, False], [None, 0]),
    ({"const": {"a": [1, None]}}, [{"a": [1, None]}], [{"a": [1]}, {}]),
    ({"const": 1}, [1, 1.0], [True, 2]),
    ({"enum": [[], {}, "x"]}, [[], {}, "x"], [[1], {"a": 1}, ""]),
    ({"enum": []}, [], [None, 1]),
    ({"not": {"type": "string"}}, [1, None], ["x"]),
    ({"not": {"required": ["a"]}}, [{"b": 1}], [{"a": 1}, 1]),
    ({"oneOf": [{"minimum": 2}, {"maximum": 4}]}, [1, 5], [2, 3, 4, "x"]),
    ({"anyOf": [{"minimum": 4}, {"maximum": 2}]}, [1, 5, "x"], [3]),
    ({"allOf": [{"minLength": 2}, {"pattern": "a"}]}, ["ab", 3], ["a", "xy"]),
    ({"if": {"minimum": 5}, "then": {"multipleOf": 2}}, [6, 3, "x"], [7]),
    ({"if": {"minimum": 5}, "else": {"multipleOf": 2}}, [7, 4], [3]),
    ({"then": False, "else": False}, [1, {}], []),
    ({"dependentRequired": {"a": ["b"]}}, [{"a": 1, "b": 2}, {"b": 1}, {}], [{"a": 1}]),
    ({"dependencies": {"a": ["b"]}}, [{"a": 1, "b": 2}], [{"a": 1}]),
    ({"dependencies": {"a": {"maxProperties": 1}}}, [{"a": 1}], [{"a": 1, "c": 2}]),
    ({"dependentSchemas": {"a": False}}, [{"b": 1}], [{"a": 1}]),
    ({"minimum": 1, "exclusiveMinimum": True, **_OLD}, [1.5, 2], [1, 0]),
    ({"exclusiveMaximum": 1}, [0.5], [1, 1.0]),
    ({"type": "integer"}, [3, 3.0], [3.5]),
    ({"type": "integer", **_OLD}, [3], [3.5, 3.0]),
    ({"type": "string", "format": "date"}, ["2024-02-29"], ["2023-02-29", "x"]),
    ({"propertyNames": {"pattern": "^a"}}, [{"a": 1, "ab": 2}, {}, 1], [{"b": 1}]),
    ({"propertyNames": {"maxLength": 1}}, [{"é": 1}], [{"éa": 1}]),
    ({"propertyNames": False}, [{}], [{"a": 1}]),
]


@pytest.mark.parametrize(("schema", "valid", "invalid"), CASES)
def test_keywords(schema, valid, invalid):
    machine = compile_schema(schema)
    for value in valid:
        assert accepts(machine, json.dumps(value, ensure_ascii=False).encode()), value
    for value in invalid:
        assert not accepts(machine, json.dumps(value, ensure_ascii=False).encode()), (
            value
        )


def test_formulas_are_constant_for_other_kinds():
    reader = Reader({"type": ["string", "array"], "minLength": 2, "maxItems": 3})
    keywords = Keywords(reader, Logic(), False)
    formulas = {kind: keywords.formula(reader.root, kind) for kind in KINDS}
    assert formulas["string"].atom == ("length", 2, None)
    assert formulas["array"].atom == ("size", 0, 3)
    assert all(formulas[kind] is FALSE for kind in ("null", "number", "object"))
    reader = Reader({"minLength": 2})
    assert Keywords(reader, Logic(), False).formula(reader.root, "number") is TRUE


def test_fault_a_type_that_is_ignored(monkeypatch):
    """Planted: `type` holds of every kind."""
    monkeypatch.setattr(Keywords, "_has_type", lambda self, node, kind: True)
    assert accepts(compile_schema({"type": "boolean"}), b"null")


def test_kinds_and_decimals():
    values = [None, True, False, 1, "x", [], {}]
    assert [kind_of(value) for value in values] == list(KINDS)
    assert decimal(0.1) == Decimal("0.1") and decimal(10**30) == Decimal(10**30)


def test_refusals_bear_on_their_kind_alone():
    assert accepts(compile_schema({"type": "string", "uniqueItems": True}), b'"x"')
    with pytest.raises(ConstraintError, match="uniqueItems"):
        compile_schema({"uniqueItems": True})
    with pytest.raises(ConstraintError, match="'extends'"):
        compile_schema({"type": "string", "extends": {}})
