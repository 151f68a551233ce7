"""Engines compared: walks along instances by masks, and pieces of the run folder."""

import json

import ml_collections
import numpy as np

from experiments.benchmarks.jsonschemabench import Instance, Problem
from experiments.run_folder import RunFolder
from experiments.studies import constraint_comparison, constraint_peers
from tests.experiments.studies.test_constraint_costs import PROBLEM, Here

DEVICE = "decodax, device"


def test_a_walk_counts_both_errors(trained):
    """Planted: a schema without keywords accepts the invalid instance too."""
    row = constraint_comparison.walk(DEVICE, trained.file, trained.eos, PROBLEM)
    assert (row["expected"], row["verdicts"]) == ("01", "01")
    assert len(row["masks"]) == len(row["commits"]) > 3 and row["seconds"] > 0
    free = PROBLEM._replace(schema="{}")
    row = constraint_comparison.walk(DEVICE, trained.file, trained.eos, free)
    assert row["verdicts"] == "11"


def test_a_refusal_is_a_row(trained):
    schema = json.dumps({"type": "array", "uniqueItems": True})
    problem = Problem("a", "s", schema, (), (Instance("[]", True),))
    row = constraint_comparison.walk(DEVICE, trained.file, trained.eos, problem)
    assert "uniqueItems" in row["refused"] and "verdicts" not in row


class Letters:
    """A session that allows one token, and reads another number of them."""

    def __init__(self, allowed, most):
        self.words = np.zeros(2, np.uint32)
        self.words[allowed >> 5] = np.uint32(1 << (allowed & 31))
        self.left = most

    def mask(self):
        return self.words

    def commit(self, token):
        self.left -= 1
        return self.left >= 0

    def is_over(self):
        return self.left == 0


def test_masks_and_steps_are_judged_apart():
    """Planted: a text that is cut, and one that is too long."""
    times = {"masks": [], "commits": []}
    reads = lambda ids: constraint_comparison.reads(Letters(40, 2), ids, times)
    assert reads([40, 40]) == (True, True) and len(times["masks"]) == 2
    assert reads([40]) == reads([40, 40, 40]) == (False, True)
    assert reads([40, 8]) == (True, False)  # planted: a token outside its mask
    assert constraint_comparison.first_token(Letters(40, 1).mask()) == 40


def test_engines_that_are_missing_are_named(trained, tmp_path, monkeypatch):
    """Every engine has an entry, and a second run measures nothing."""
    monkeypatch.setattr(constraint_comparison, "Worker", Here)
    installed = lambda package: not package
    monkeypatch.setattr(constraint_peers, "is_installed", installed)
    fields = {"peers": (DEVICE, "xgrammar"), "cost_chunk": 1, "peer_limit": 9.0}
    config = ml_collections.ConfigDict(fields)
    problems = [PROBLEM, PROBLEM._replace(name="slow")]
    store = RunFolder(tmp_path)
    results = constraint_comparison.measured(config, store, trained, problems)
    assert results["xgrammar"]["version"] is None and not results["xgrammar"]["rows"]
    first, second = results[DEVICE]["rows"]
    assert first["verdicts"] == "01" and second["stopped"] == "over 9 s"
    monkeypatch.setattr(Here, "call", lambda *arguments: 1 / 0)
    again = constraint_comparison.measured(config, store, trained, problems)
    assert again == results
