"""Public tests as a reward, and hidden ones as the measure."""

import pytest

from decoding.execution import tests_runner
from decoding.hypotheses.rank import Sample
from experiments.studies import searched_programs as study
from models.errors import MethodError
from training.data.problems import programs

INPUTS = ((1, 2), (3,), (0, 5), (4, 4), (9,), (1, 1), (2, 2, 2), (7, 0))
PROBLEM = programs.Problem(tuple((x, sum(x)) for x in INPUTS))


def samples(*texts):
    return [Sample([], text, [], True) for text in texts]


def test_a_filter_runs_a_program_once(monkeypatch):
    monkeypatch.setenv(tests_runner.SWITCH, "1")
    tests = study.Filter([PROBLEM])
    assert tests(samples("sum(x)\n", "x[0]\n", "sum(x)\n")) == [1, 1 / 3, 1]
    assert len(tests.asked) == 2
    # Planted: what was run is not run again.
    tests._ask = lambda new: pytest.fail(f"{new} ran again")
    assert tests.fresh()(samples("x[0]\n")) == [1 / 3]
    assert len(tests.asked) == 1


def test_a_filter_is_off_by_default(monkeypatch):
    monkeypatch.delenv(tests_runner.SWITCH, raising=False)
    with pytest.raises(MethodError, match="running programs is off"):
        study.Filter([PROBLEM])


def test_hidden_examples_are_those_that_no_search_saw():
    assert study.hidden_share(PROBLEM, "sum(x)\n") == 1
    assert study.hidden_share(PROBLEM, "x[0]\n") == 2 / 5
    tests = study.public_tests(PROBLEM)
    assert tests[0] == "assert f([1, 2]) == 3" and len(tests) == programs.PUBLIC


def test_claims_by_hand():
    """PG-TD passes all, others none."""
    row = {"public": [1], "nodes": [9], "rounds": 9, "programs": 3}
    none, every = ({**row, "hidden": [x], "solved": [x]} for x in (0, 1))
    rows = {name: [none] for name in ("greedy", "beams", "samples")}
    shown, claims = study.tables_of({**rows, "PG-TD": [every]}, "beams", "samples")
    assert shown["lines"][-1] == ["PG-TD", *["1.000"] * 4, "9", "9", "3.0"]
    assert {line[-1] for line in claims["lines"]} == {"yes"}
    _, planted = study.tables_of({**rows, "PG-TD": [none]}, "beams", "samples")
    assert {line[-1] for line in planted["lines"]} == {"even"}
