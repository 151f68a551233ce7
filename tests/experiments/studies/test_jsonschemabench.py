"""JSONSchemaBench on a small model: coverage with and without, and calls saved."""

import json

import ml_collections
import numpy as np
import pytest

from experiments.run_folder import RunFolder
from experiments.studies import jsonschemabench
from models.errors import ConfigError
from tests.experiments import conftest
from tests.experiments.benchmarks.test_jsonschemabench import write

SCHEMAS = [
    {"properties": {"name": {"const": "an identifier"}}, "required": ["name"]},
    {"enum": [[True, None], {"key": "value"}]},
    {"type": "array", "uniqueItems": True},
]


@pytest.fixture
def config(tmp_path):
    rows = [{"id": f"{i}", "schema": schema} for i, schema in enumerate(SCHEMAS)]
    rows.append({"id": "long", "schema": {"description": 500 * "x"}})
    closed = {"type": "object", "additionalProperties": False}
    rows[0]["schema"] |= closed
    write(tmp_path, "schemas_Easy", rows)
    fields = {"data": str(tmp_path), "subsets": ("Easy",), "seed": 0, "schemas": 4}
    fields |= {"prompt_tokens": 200, "max_new_tokens": 32, "rows": 3, "methods": ()}
    fields |= {"trained": {}, "whitespaces": ("compact",), "model": "tiny", "width": 8}
    return ml_collections.ConfigDict(fields)


def test_texts_are_instances_in_fewer_calls(config, tmp_path):
    """Planted: texts without the schema are none, and a schema that is refused has no
    part in what is saved."""
    pytest.importorskip("jsonschema")
    store = RunFolder(tmp_path / "run")
    report = jsonschemabench.run(config, store, conftest.make(1, 0, eos=(0,)))
    coverage, calls = report["tables"]
    shares = np.array([[float(x) for x in line[3:7]] for line in coverage["lines"]])
    free, held, jump = shares
    assert held[0] == jump[0] == pytest.approx(2 / 3, abs=1e-3)
    assert held[3] == jump[3] == 1 and held[2] == pytest.approx(2 / 3, abs=1e-3)
    assert free[2] == free[3] == 0
    assert "uniqueItems" in coverage["notes"][1] and "1 drawn" in coverage["notes"][0]
    assert calls["lines"][2][6].endswith("2 of 2")
    assert calls["lines"][0][6] == calls["lines"][1][6] == ""
    assert [line[-1] for line in calls["lines"]] == ["0"] * 3
    again = jsonschemabench.run(config, store, conftest.make(1, 0, eos=(0,)))
    assert json.dumps(again["tables"]) == json.dumps(report["tables"])


def test_prompts_that_are_all_too_long_are_refused(config, tmp_path):
    config.prompt_tokens = 3
    with pytest.raises(ConfigError, match=r"prompt_tokens=3: .* raise it"):
        jsonschemabench.run(config, RunFolder(tmp_path / "run"), conftest.make(1, 0))
