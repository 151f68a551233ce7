"""decoding/automata/schema_reading.py: nodes, references, malformed schemas."""

import pytest

from decoding.automata.byte_machine import accepts
from decoding.automata.json_schema import compile_schema
from decoding.automata.schema_reading import Reader
from models.errors import ConstraintError


def _reads(schema, texts) -> list[bool]:
    machine = compile_schema(schema)
    return [accepts(machine, text.encode()) for text in texts]


def test_equal_schemas_are_one_node():
    inner = {"type": "string", "minLength": 1}
    reader = Reader({"properties": {"a": {**inner, "title": "A"}, "b": inner}})
    a, b = reader.root.keywords["properties"].values()
    assert a is b and reader.node({"title": "x"}, "", "") is reader.true


def test_numbers_and_booleans_are_different_values():
    reader = Reader({})
    assert reader.literal(1, "") is not reader.literal(True, "")


@pytest.mark.parametrize(
    "reference",
    [
        "#/$defs/n",
        "#n",
        "other",
        "other#",
        "http://x.org/a/other",
        "#/$defs/a~1b%25",
    ],
)
def test_references_within_the_document(reference):
    schema = {
        "$id": "http://x.org/a/root",
        "properties": {"v": {"$ref": reference}},
        "$defs": {
            "n": {"$anchor": "n", "type": "null"},
            "o": {"$id": "other", "type": "null"},
            "a/b%": {"type": "null"},
        },
    }
    assert _reads(schema, ['{"v": null}', '{"v": 1}']) == [True, False]


def test_references_are_relative_to_their_resource():
    schema = {
        "$ref": "inner",
        "$defs": {
            "n": {"type": "string"},
            "i": {
                "$id": "inner",
                "$ref": "#/$defs/n",
                "$defs": {"n": {"type": "null"}},
            },
        },
    }
    assert _reads(schema, ["null", '"x"']) == [True, False]


_BODY = {
    "$ref": "#/definitions/n",
    "minimum": 3,
    "definitions": {"n": {"type": "number"}},
}


def test_neighbours_of_a_reference_count_since_2019():
    assert _reads(_BODY, ["2", "4"]) == [False, True]
    old = {"$schema": "http://json-schema.org/draft-07/schema#", **_BODY}
    assert _reads(old, ["2", "4"]) == [True, True]


def test_fault_neighbours_that_never_count():
    """Planted: the schema is read as one of draft 7."""
    reader = Reader(_BODY)
    reader.draft = 7
    assert "minimum" not in reader.node(_BODY, "", "").keywords


@pytest.mark.parametrize(
    ("schema", "what"),
    [
        ({"$ref": "#/$defs/x"}, "does not exist"),
        ({"$ref": "http://x.org/y"}, "copy the schema into"),
        ({"$ref": "#"}, "returns to itself"),
        ({"allOf": [{"$ref": "#"}]}, "returns to itself"),
        ({"properties": []}, "no object"),
        ({"anyOf": {}}, "no array"),
        ({"required": True}, "array of strings"),
        ({"minLength": -1}, "integer of 0 or more"),
        ({"maxItems": 1.5}, "integer of 0 or more"),
        ({"minimum": "1"}, "use a number"),
        ({"multipleOf": 0}, "above 0"),
        ({"pattern": 3}, "use a string"),
        ({"enum": "a"}, "no array"),
        ({"items": 3}, "not an object or a boolean"),
        ([], "not an object or a boolean"),
        ({"type": "strng"}, "JSON Schema's types"),
    ],
)
def test_malformed_schemas_are_refused(schema, what):
    with pytest.raises(ConstraintError, match=what):
        compile_schema(schema)


def test_names_with_slashes_in_paths():
    with pytest.raises(ConstraintError, match="at /properties/a~1b~0/pattern"):
        compile_schema({"properties": {"a/b~": {"pattern": "("}}})
