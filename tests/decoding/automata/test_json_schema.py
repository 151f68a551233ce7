"""decoding/automata/json_schema.py: texts of a machine are instances of its schema.

The oracle is a small validator below; a random schema meets random instances.
"""

import json
import math
import random

import hypothesis
import jsonschema
import numpy as np
import pytest
from hypothesis import strategies as st

from decoding.automata.byte_machine import Config, accepts, is_final, read
from decoding.automata.json_schema import compile_schema
from decoding.automata.schema_keywords import Keywords, Members
from models.errors import ConstraintError
from tests.decoding.automata import random_schemas


def _accepts(machine, value) -> bool:
    return accepts(machine, json.dumps(value, ensure_ascii=False).encode())


def _check(schema, valid, invalid, **options):
    machine = compile_schema(schema, **options)
    for value in valid:
        assert _accepts(machine, value), value
    for value in invalid:
        assert not _accepts(machine, value), value
    return machine


def _is_type(name, value) -> bool:
    if name in ("integer", "number"):
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return name == "number" or value == math.floor(value)
    types = {"object": dict, "array": list, "string": str, "boolean": bool}
    return value is None if name == "null" else isinstance(value, types[name])


def _same(a, b) -> bool:
    """Equality of JSON: true is not 1, but 1.0 is."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    return a == b


def _is_valid(schema, value) -> bool:
    """Validate `value` by the keywords that `_random_schema` uses."""
    if isinstance(schema, bool):
        return schema
    tests = [
        _is_type(schema["type"], value) if "type" in schema else True,
        any(_same(value, other) for other in schema.get("enum", [value])),
        all(_is_valid(part, value) for part in schema.get("allOf", [])),
        any(_is_valid(part, value) for part in schema.get("anyOf", [True])),
        sum(_is_valid(part, value) for part in schema.get("oneOf", [True])) == 1,
        not _is_valid(schema.get("not", False), value),
    ]
    if "if" in schema:
        branch = "then" if _is_valid(schema["if"], value) else "else"
        tests.append(_is_valid(schema.get(branch, True), value))
    if _is_type("number", value):
        tests.append(value >= schema.get("minimum", value))
        tests.append("multipleOf" not in schema or value % schema["multipleOf"] == 0)
    if isinstance(value, str):
        tests.append(len(value) >= schema.get("minLength", 0))
        tests.append(len(value) <= schema.get("maxLength", 99))
    if isinstance(value, list):
        tests.append(all(_is_valid(schema.get("items", True), item) for item in value))
        tests.append(len(value) >= schema.get("minItems", 0))
    if isinstance(value, dict):
        declared = schema.get("properties", {})
        rest = schema.get("additionalProperties", True)
        tests += [_is_valid(declared.get(name, rest), v) for name, v in value.items()]
        tests += [name in value for name in schema.get("required", [])]
        tests.append(len(value) >= schema.get("minProperties", 0))
        tests.append(len(value) <= schema.get("maxProperties", 99))
    return all(tests)


def _verdicts(schemas, seed) -> tuple[int, int, int]:
    """Return counts of texts: right, valid but refused, invalid but accepted."""
    rng = random.Random(seed)
    right = refused = wrong = 0
    for _ in range(schemas):
        schema = random_schemas.schema(rng)
        machine = compile_schema(schema)
        for _ in range(30):
            text = random_schemas.text(rng, random_schemas.value(rng))
            valid, read_ = (
                _is_valid(schema, json.loads(text)),
                accepts(machine, text.encode()),
            )
            right += valid == read_
            refused += valid and not read_
            wrong += read_ and not valid
    return right, refused, wrong


def test_random_schemas_accept_no_invalid_text():
    right, refused, wrong = _verdicts(120, seed=0)
    assert wrong == 0
    # Refused are members in another order, or twice.
    assert refused < 0.05 * right


@pytest.mark.long
@hypothesis.settings(max_examples=3_000, deadline=None, derandomize=True, database=None)
@hypothesis.given(st.randoms(use_true_random=False))
def test_python_jsonschema_says_so_too(rng):
    """Of some 90,000 texts, those that a machine accepts are instances elsewhere."""
    schema = random_schemas.schema(rng)
    try:
        machine = compile_schema(schema)
    except ConstraintError:
        return
    validator = jsonschema.Draft202012Validator(schema)
    for _ in range(30):
        text = random_schemas.text(rng, random_schemas.value(rng))
        if accepts(machine, text.encode()):
            assert validator.is_valid(json.loads(text)), (schema, text)


def test_fault_additional_properties_that_are_ignored(monkeypatch):
    """Planted: members that no keyword names may be anything."""
    members = Keywords._members

    def faulty(self, node):
        formula = members(self, node)
        if formula.kind != "atom":
            return formula
        return self.logic.atom(
            ("members", Members(*formula.atom[1][:2], self.reader.true))
        )

    monkeypatch.setattr(Keywords, "_members", faulty)
    assert _verdicts(120, seed=0)[2] > 0


_TAGGED = {
    "type": "object",
    "oneOf": [
        {
            "properties": {
                "of": {"type": "array", "items": {"type": kind}},
                "is": {"const": kind},
            },
            "required": ["of", "is"],
        }
        for kind in ("string", "boolean")
    ],
}


def test_label_keeps_which_alternatives_held():
    _check(
        _TAGGED,
        [{"of": ["x"], "is": "string"}, {"of": [True], "is": "boolean"}],
        [{"of": [True], "is": "string"}, {"of": ["x"], "is": "boolean"}, {"of": []}],
    )


def test_fault_labels_that_return_to_the_wrong_formula():
    """Planted: the labels of arrays of strings and of booleans are swapped."""
    machine = compile_schema(_TAGGED)
    back = machine.back.copy()
    for row in back:
        labels = np.flatnonzero(row >= 0)
        row[labels] = row[labels[::-1]]
    faulty = machine._replace(back=back)
    assert _accepts(faulty, {"of": ["x"], "is": "boolean"})


def _walk(machine, rng) -> bytes | None:
    """Return a random text of the machine; None if it became too long."""
    at, data = Config(machine.start), b""
    while len(data) < 200:
        ways = np.flatnonzero(machine.moves[at.state] >= 0).tolist()
        if is_final(machine, at) and (not ways or rng.random() < 0.2):
            return data
        rng.shuffle(ways)
        closing = [byte for byte in ways if byte in b'"}]']
        for byte in closing + ways if len(data) > 40 else ways:
            if read(machine, at, bytes([byte])).state >= 0:
                at, data = read(machine, at, bytes([byte])), data + bytes([byte])
                break
        else:
            return None
    return None


def test_texts_of_machines_are_instances():
    rng = random.Random(3)
    count = 0
    for _ in range(60):
        schema = random_schemas.schema(rng, 2)
        machine = compile_schema(schema)
        for _ in range(5 if machine.start >= 0 else 0):
            text = _walk(machine, rng)
            if text is not None and b"e" not in text.lower() and len(text) < 60:
                count += 1
                assert _is_valid(schema, json.loads(text)), (schema, text)
    assert count > 60


def test_recursion():
    tree = {
        "type": "object",
        "properties": {"l": {"$ref": "#"}, "v": {"type": "integer"}},
        "required": ["v"],
        "additionalProperties": False,
    }
    deep = {"v": 0}
    for value in range(40):
        deep = {"l": deep, "v": value}
    machine = _check(
        tree, [{"v": 1}, deep], [{"l": {}, "v": 1}, {"l": {"v": "x"}, "v": 1}]
    )
    assert len(machine.moves) < 100


def test_white_space():
    schema = {"properties": {"a": {"type": "array"}}}
    spaced = b'{ "a" :\n[ 1 ,\t2 ] }'
    assert accepts(compile_schema(schema), spaced)
    compact = compile_schema(schema, whitespace="compact")
    assert not accepts(compact, spaced)
    assert accepts(compact, b'{"a":[1,2]}') and not accepts(compact, b'{"a":[1, 2]}')
    assert not accepts(compile_schema(schema), b" {}")
    with pytest.raises(ConstraintError, match="compact"):
        compile_schema(schema, whitespace="compct")


def test_any_json_is_read():
    machine = compile_schema(True)
    rng = random.Random(0)
    assert all(_accepts(machine, random_schemas.value(rng, 4)) for _ in range(100))
    for text in ("01", "1.", "[1,]", "{'a':1}", "nul", '"\n"', "1e", "--1", "", "1 2"):
        assert not accepts(machine, text.encode())
    assert compile_schema(False).start == -1


def test_equal_schemas_share_states():
    item = {"type": "object", "properties": {"a": {"pattern": "^x+$"}}}
    sizes = []
    for count in (1, 9):
        items = {f"p{i}": {**item, "title": f"{i}"} for i in range(count)}
        schema = {"properties": items, "additionalProperties": False}
        sizes.append(len(compile_schema(schema).moves))
    assert sizes[1] < sizes[0] + 8 * 8


def test_large_schemas():
    words = [f"word number {i * 7919 % 5000}" for i in range(5_000)]
    machine = _check({"enum": words}, [words[17]], ["word number 5000"])
    assert len(machine.moves) < 200
    long = _check(
        {"type": "string", "maxLength": 100_000}, ["x" * 100_000], ["x" * 100_001]
    )
    assert len(long.moves) < 40
    deep = True
    for _ in range(5_000):
        deep = {"items": deep}
    with pytest.raises(ConstraintError, match="too deep"):
        compile_schema(deep)


def test_too_large_schemas_are_refused():
    """Which of 20 names were read has to be kept for the 20 that follow."""
    pairs = [(f"a{i}", f"b{i}") for i in range(20)]
    either = [{"anyOf": [{"required": [a]}, {"required": [b]}]} for a, b in pairs]
    names = {key: {} for key in sorted(name for pair in pairs for name in pair)}
    with pytest.raises(ConstraintError, match="states"):
        compile_schema({"properties": names, "allOf": either})


@pytest.mark.parametrize(
    ("schema", "path", "keyword"),
    [
        ({"items": {"uniqueItems": True}}, "/items/uniqueItems", "uniqueItems"),
        ({"items": [{"contains": {}}]}, "/items/0/contains", "contains"),
        ({"unevaluatedItems": False}, "/unevaluatedItems", "unevaluatedItems"),
        ({"$ref": "https://example.com/x"}, "/$ref", "ref"),
        ({"allOf": [{"pattern": "(?<=a)b"}]}, "/allOf/0/pattern", "looks behind"),
    ],
)  # fmt: skip
def test_refusals_name_path_and_keyword(schema, path, keyword):
    with pytest.raises(ConstraintError) as caught:
        compile_schema(schema)
    assert f"at {path}: " in str(caught.value) and keyword in str(caught.value)


def test_strict_formats():
    schema = {"type": "string", "format": "colour"}
    _check(schema, ["red"], [1])
    with pytest.raises(ConstraintError, match=r"colour.*use one of"):
        compile_schema(schema, strict_formats=True)
