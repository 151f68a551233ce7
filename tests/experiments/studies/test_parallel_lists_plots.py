"""Plots of the stage `parallel_lists`, from lists that were written by hand."""

from typing import Any

import pytest

from configs.studies import parallel_lists as recipe
from experiments.studies import parallel_lists_plots as plots
from experiments.studies import parallel_lists_tables as tables

CALLS = {"T = 1, 1 a step": 7, "T = 1, 2 a step": 4, "T = 1, one shot": 1}
THRESHOLDS = {"threshold .9": 5, "threshold .5": 2}


def rows(config: Any) -> tables.Rows:
    """Two seeds, two lists of seven tokens a rule; the second seed writes one wrong."""

    def row(calls: int, seed: int) -> tables.Row:
        each = {"right": [1, 1 - seed], "calls": [calls] * 2, "tokens": [7, 7]}
        return {rule: dict(each) for rule in config.rules}

    every = {**CALLS, **THRESHOLDS}
    return {
        name: [row(calls, seed) for seed in (0, 1)] for name, calls in every.items()
    }


def test_points_and_closed_forms():
    """Planted: a closed form of a call more."""
    c = recipe.get_config()
    drawn = {plot["name"]: plot["series"] for plot in plots.made(c, rows(c))}
    assert [*drawn] == ["steps_t1", "thresholds"]  # no greedy number of tokens is there
    sampled, greedy = drawn["steps_t1"], drawn["thresholds"]
    assert [line["name"] for line in greedy] == list(c.rules)
    assert greedy[0]["x"] == [7 / 5, 7 / 2]
    assert greedy[0]["y"] == [0.75, 0.75] and greedy[0]["error"] == [0.25, 0.25]
    assert sampled[0]["x"] == [1.0, 7 / 4, 7.0]
    law = next(line for line in sampled if line["name"] == "shuffle, closed form")
    assert c.rules[law["of"]] == "shuffle"
    of = lambda steps: tables.expected(tables.LAWS["shuffle"], 7, steps)
    assert law["x"] == [1.0, 7 / 4, 7.0]
    assert law["y"] == pytest.approx([of(7), of(4), of(1)])
    assert law["y"] != pytest.approx([of(7), of(5), of(2)])


def test_arms_of_other_kinds_are_left_out():
    names = plots.fixed(recipe.get_config(), 0.0)
    assert names == ["1 a step", "2 a step", "4 a step", "7 a step"]
