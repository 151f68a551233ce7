"""Verdicts of byte machines: rows of schemas, chunks, and reasons of refusals."""

import json

import ml_collections
import pytest

from experiments.benchmarks.jsonschemabench import Instance, Problem
from experiments.run_folder import RunFolder
from experiments.studies import constraint_peers, constraint_verdicts
from experiments.studies.constraint_workers import Outcome

SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"a": {"type": "integer", "maximum": 9}},
        "required": ["a"],
        "additionalProperties": False,
    }
)
INSTANCES = (
    Instance('{"a": 3}', True),
    Instance('{"a": 10}', False),
    Instance('{"a": 3, "b": 1}', False),
)
PROBLEM = Problem("one", "Easy", SCHEMA, ("maximum",), INSTANCES)


def test_instances_are_read_by_bytes():
    """Planted: without the schema's keywords the invalid ones are accepted."""
    row = constraint_verdicts.judge(PROBLEM)
    assert (row["expected"], row["ours"]) == ("100", "100")
    assert row["states"] > 22 and 0 < row["need"] < 32 and row["seconds"] > 0
    free = constraint_verdicts.judge(PROBLEM._replace(schema='{"type": "object"}'))
    assert free["ours"] == "111"


def test_llguidance_reads_the_same_bytes():
    """Planted: a schema that it refuses has no verdicts."""
    pytest.importorskip("llguidance")
    row = constraint_verdicts.judge(PROBLEM)
    assert row["theirs"] == "100" and row["their_seconds"] > 0
    refused = PROBLEM._replace(schema='{"unevaluatedItems": {"type": "null"}}')
    assert constraint_verdicts.judge(refused)["theirs"] == "---"


def test_without_llguidance_its_verdicts_are_unknown(monkeypatch):
    monkeypatch.setattr(constraint_peers, "is_installed", lambda package: False)
    row = constraint_verdicts.judge(PROBLEM)
    assert row["theirs"] == "---" and row["their_refusal"] == "not installed"


def test_refused_schemas_have_no_verdict():
    schema = '{"type": "array", "uniqueItems": true}'
    row = constraint_verdicts.judge(PROBLEM._replace(schema=schema))
    assert row["ours"] == "---" and "states" not in row
    assert constraint_verdicts.reason(row["refused"]).startswith("uniqueItems: ")


@pytest.mark.parametrize(
    ("refusal", "words"),
    [
        (
            "the JSON schema at /a: 'contains' is not supported; state them",
            "contains: is not supported",
        ),
        (
            "the JSON schema at /: the grammar needs more than 20000 states: lower",
            "size (20,000 states, or digits)",
        ),
        (
            "the JSON schema at /b/c: '$ref' refers to 'x/y', which is gone; copy it",
            "$ref: refers to …, which is gone",
        ),
        ("json_schema '{...}' accepts no text: change it", "accepts no text"),
    ],
)
def test_reasons_are_keywords(refusal, words):
    assert constraint_verdicts.reason(refusal) == words


class Stopping:
    """A worker that stops at one schema."""

    def __init__(self, *about, **fields):
        self.calls = 0

    def call(self, limit, function, problem):
        self.calls += 1
        if problem.name == "slow":
            return Outcome(None, f"over {limit:g} s")
        return Outcome(function(problem))

    def close(self):
        pass


def test_chunks_are_pieces_and_a_stopped_schema_is_a_row(tmp_path, monkeypatch):
    """A second run measures nothing. Planted: a piece that is gone is measured."""
    workers = []

    def make(*about):
        workers.append(Stopping())
        return workers[-1]

    monkeypatch.setattr(constraint_verdicts, "Worker", make)
    config = ml_collections.ConfigDict({"chunk": 2, "processes": 2, "limit": 7.0})
    problems = [PROBLEM, PROBLEM._replace(name="slow"), PROBLEM._replace(name="two")]
    store = RunFolder(tmp_path)
    rows = constraint_verdicts.measured(config, store, problems)
    assert [row["name"] for row in rows] == ["one", "slow", "two"]
    assert rows[1]["stopped"] == "over 7 s" and rows[1]["ours"] == "---"
    assert sum(worker.calls for worker in workers) == 3
    assert constraint_verdicts.measured(config, store, problems) == rows
    assert sum(worker.calls for worker in workers) == 3
    (tmp_path / "verdicts" / "1-1.json").unlink()
    constraint_verdicts.measured(config, store, problems)
    assert sum(worker.calls for worker in workers) == 4
