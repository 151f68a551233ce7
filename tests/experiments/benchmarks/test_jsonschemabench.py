"""Files of schemas with instances: what is read, and the order of draws."""

import gzip
import json

import pytest

from experiments.benchmarks import jsonschemabench
from experiments.benchmarks.jsonschemabench import Instance, Problem
from models.errors import DataError


def write(folder, name, rows):
    with gzip.open(folder / f"{name}.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def test_instances_join_by_id(tmp_path):
    """Planted: a test of another id, and one without a verdict, are instances."""
    write(tmp_path, "schemas_Easy", [{"id": "a", "schema": {"type": "null"}}])
    tests = [{"data": None, "valid": True}, {"data": 1, "valid": False}, {"data": 2}]
    write(tmp_path, "maskbench_tests", [{"id": "b", "tests": tests[:1]}])
    extra = {"id": "c", "schema": True, "features": ["x"], "tests": tests}
    write(tmp_path, "maskbench_extra", [extra])
    alone, further = jsonschemabench.read(str(tmp_path))
    assert alone == Problem("a", "Easy", '{"type": "null"}')
    assert further.subset == jsonschemabench.FURTHER and further.features == ("x",)
    assert further.instances == (Instance("null", True), Instance("1", False))


def test_texts_are_utf_8():
    """Characters stand as they are. Planted: a lone surrogate has no bytes."""
    assert jsonschemabench.json_text("é") == '"é"'
    with pytest.raises(UnicodeEncodeError):
        "\ud800".encode()
    assert jsonschemabench.json_text("\ud800").encode() == b'"\\ud800"'


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"schema": {}}, "no object with an id"),
        ({"id": "a"}, "has no schema"),
    ],
)
def test_other_layouts_are_refused(tmp_path, row, words):
    write(tmp_path, "schemas_Easy", [row])
    with pytest.raises(DataError, match=words):
        jsonschemabench.read(str(tmp_path))


def test_a_folder_without_schemas_is_refused(tmp_path):
    with pytest.raises(DataError, match="holds no schemas_"):
        jsonschemabench.read(str(tmp_path))


def test_a_small_draw_begins_a_larger_one():
    """Planted: a draw of another seed is another one."""
    problems = [Problem(f"{i}", "s", "{}") for i in range(50)]
    whole = jsonschemabench.drawn(problems, 0, 0)
    assert sorted(whole) == sorted(problems) and whole != problems
    assert jsonschemabench.drawn(problems, 7, 0) == whole[:7]
    assert jsonschemabench.drawn(problems, 7, 1) != whole[:7]


def test_only_schemas_with_instances_are_tried():
    """Planted: one without instances, and one of the further schemas."""
    some = (Instance("1", True),)
    bare, good = Problem("a", "s", "{}"), Problem("b", "s", "{}", (), some)
    further = Problem("c", jsonschemabench.FURTHER, "{}", (), some)
    assert jsonschemabench.tried([bare, further, good], 3) == [good]


@pytest.mark.parametrize(
    ("text", "schema", "score"),
    [
        ('{"a": 1}', {"required": ["a"]}, (True, True)),
        ('{"b": 1}', {"required": ["a"]}, (True, False)),
        ('{"a": 1', {"required": ["a"]}, (False, False)),
        ('"1.2.3"', {"format": "ipv4"}, (True, False)),
        ('"no date"', {"format": "date"}, (True, True)),  # not one that is asserted
        ("1", {"$ref": "#/nowhere"}, (True, False)),
    ],
)
def test_scores(text, schema, score):
    """Planted: an instance of another schema, and a text that is cut."""
    pytest.importorskip("jsonschema")
    assert jsonschemabench.score(text, json.dumps(schema)) == score


def test_shares():
    """Compliance is of the schemas that are taken, and nothing is no perfect score."""
    shares = jsonschemabench.coverage(
        [True, True, False, True], [True, False, True, True]
    )
    assert shares == (0.75, 0.5, 2 / 3)
    assert jsonschemabench.coverage([False], [True]).compliance != 1
    assert jsonschemabench.coverage([True, True], [True, False]).empirical == 0.5
