"""The stage `exact_extract`: its cases, and what it counts."""

import types

import numpy as np
import pytest

from experiments.recipes import settings
from experiments.run_folder import RunFolder
from experiments.studies import exact_extract as study
from models.errors import ConfigError

END = 9


def config(**fields):
    numbers = {"seed": 0, "cases": 3, "per_file": 2, "passages": (8, 12), "longest": 3}
    return types.SimpleNamespace(**{**numbers, **fields})


def texts() -> list[list[int]]:
    rng = np.random.default_rng(0)
    lines = [[*rng.integers(0, 3, 4).tolist(), END] for _ in range(60)]
    return [[t for line in lines[i::3] for t in line] for i in range(3)]


def test_answers_stand_in_the_smallest_passage():
    """Planted: a prompt cut a token later holds another answer."""
    chosen = study.cases(config(), texts(), [END], 12)
    assert len(chosen) == 3
    for case in chosen:
        assert len(case.prompt) == 12 and 2 <= len(case.answer) <= 3
        assert END not in case.answer
        assert study.is_within(case.answer, case.prompt[-8:])
        whole = [*case.prompt, *case.answer, END]
        assert any(study.is_within(whole, text) for text in texts())
        assert not any(study.is_within([*whole[:-1], 8], text) for text in texts())


def test_too_few_cases_are_refused():
    with pytest.raises(ConfigError, match="have 3 lines to finish, not 9"):
        study.cases(config(cases=9, per_file=1), texts(), [END], 12)


def test_spans():
    assert study.is_within([2, 3], [1, 2, 3]) and study.is_within([1], (1,))
    assert not study.is_within([], [1]) and not study.is_within([3, 2], [1, 2, 3])


def test_tables_by_hand():
    row = {
        "size": 32,
        "exact": [1.0, 0.0],
        "by_length": [1.0, 1.0],
        "greedy": [0.0, 0.0],
        "extractive": [1.0, 0.0],
        "optimal": [0.0, 0.0],
        "scores": [-1.0, -3.0],
        "gap": [0.5],
        "above": [0.0],
    }
    (line,) = study.answers_table([row])["lines"]
    assert line[:2] == ["32", "0.500 ± 0.500"] and line[-1] == "1/1"
    assert study.answers_table([{**row, "above": [1.0]}])["lines"][0][-1] == "0/1"
    assert study.claims_table([row])["lines"][0][1].startswith("+0.500")
    ms = {"exact": [1, 2, 3], "greedy": [4, 5, 6]}
    (times,) = study.times_table([{"size": 32, "calls": 2, "ms": ms}])["lines"]
    assert times == ["32", "2", "2 (1–3)", "–", "5 (4–6)"]


@pytest.mark.long
def test_stage(tmp_path):
    """On the shipped model: no span of greedy decoding is above the best."""
    c = settings.load("configs/studies/exact_extract.py")
    c.update(cases=4, passages=(32,), repeats=1, whole=0)
    report = study.run(c, RunFolder(tmp_path))
    below, count = report["tables"][0]["lines"][0][-1].split("/")
    assert below == count
