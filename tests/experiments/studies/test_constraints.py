"""The study of constrained decoding as a whole, on schemas of this file."""

import json

import pytest

from configs.studies import constraints as recipe
from experiments.run_folder import RunFolder
from experiments.studies import constraint_verdicts, constraints
from models.errors import ConfigError
from tests.experiments.studies.test_constraint_verdicts import (
    INSTANCES,
    SCHEMA,
    Stopping,
)


def config(**fields):
    c = recipe.get_config()
    for name, value in fields.items():
        c[name] = value
    return c


def test_a_folder_becomes_tables(tmp_path, monkeypatch):
    """Planted: a second run with a part more keeps the first one's rows."""
    tests = [{"data": json.loads(x.text), "valid": x.is_valid} for x in INSTANCES]
    row = {"id": "one", "schema": json.loads(SCHEMA), "tests": tests, "features": []}
    (tmp_path / "maskbench_extra.jsonl").write_text(json.dumps(row) + "\n")
    monkeypatch.setattr(constraint_verdicts, "Worker", Stopping)
    fields = {"data": str(tmp_path), "parts": (constraints.VERDICTS,), "processes": 1}
    store = RunFolder(tmp_path / "run")
    report = constraints.run(config(**fields), store)
    figures = report["summary"][constraints.VERDICTS]
    assert figures["schemas"] == figures["held"] == 1
    assert figures["invalid_accepted"] == figures["valid_refused"] == 0
    assert report["tables"][0]["lines"][-1][:2] == ["all", "1"]
    monkeypatch.setattr(constraint_verdicts, "judged", lambda *arguments: 1 / 0)
    fields["parts"] = (constraints.VERDICTS, constraints.PEERS)
    report = constraints.run(config(**fields, peers=(), peers_size=0), store)
    assert report["summary"][constraints.VERDICTS] == figures


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"parts": ("noodle",)}, "use some of"),
        ({}, r"config\.data is empty"),
        ({"data": "x", "draws": (1,)}, "a draw for each size"),
        ({"data": "x", "chunk": 0}, "use 1 or more"),
        ({"data": "x", "peers": ("noodle",)}, "use some of"),
    ],
)
def test_mistakes_are_named_before_anything_runs(fields, words, tmp_path):
    with pytest.raises(ConfigError, match=words):
        constraints.run(config(**fields), RunFolder(tmp_path))
