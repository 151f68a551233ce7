"""decoding/automata/schema_arrays.py: items by position, and their number."""

import json

import pytest

from decoding.automata import schema_arrays
from decoding.automata.byte_machine import accepts
from decoding.automata.json_schema import compile_schema


def _reads(schema, value) -> bool:
    return accepts(compile_schema(schema), json.dumps(value).encode())


S, N = {"type": "string"}, {"type": "null"}


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ({"items": S}, [[], ["a", "b"]], [["a", 1]]),
        ({"items": [S], "additionalItems": N}, [[], ["a", None]], [[None], ["a", "b"]]),
        ({"prefixItems": [S], "items": N}, [["a", None, None]], [["a", "b"]]),
        ({"prefixItems": [S, N]}, [["a"], ["a", None, 1]], [["a", 1]]),
        ({"prefixItems": [S], "items": False}, [[], ["a"]], [["a", "b"]]),
        ({"minItems": 2, "maxItems": 3}, [[1, 2], [1, 2, 3]], [[1], [1, 2, 3, 4]]),
        ({"maxItems": 0}, [[]], [[1]]),
        ({"minItems": 2, "maxItems": 1}, [], [[1], [1, 2]]),
        ({"not": {"items": S}}, [[1], ["a", 1]], [[], ["a"]]),
        ({"oneOf": [{"items": S}, {"maxItems": 1}]}, [["a", "b"], [1]], [[], ["a"]]),
        ({"anyOf": [{"items": S}, {"items": N}]}, [["a"], [None], []], [["a", None]]),
    ],
)  # fmt: skip
def test_items(schema, valid, invalid):
    schema = {"type": "array", **schema}
    assert all(_reads(schema, value) for value in valid)
    assert not any(_reads(schema, value) for value in invalid)


def test_fault_a_violation_that_is_forgotten(monkeypatch):
    """Planted: an item that violates an alternative leaves it open."""
    monkeypatch.setattr(schema_arrays, "behind", lambda logic, formulas, *_: formulas)
    assert _reads({"anyOf": [{"items": S}, {"items": N}]}, ["a", None])


def test_commas():
    machine = compile_schema({"type": "array"})
    for text in ("[1,]", "[,1]", "[1 2]", "[", "[1"):
        assert not accepts(machine, text.encode())
