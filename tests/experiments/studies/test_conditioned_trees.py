"""The stage `conditioned_trees`: its arms and budgets, and what is refused."""

import pytest

from configs.studies import conditioned_trees as recipe
from decoding.catalogue import Spec
from experiments.measurement.followed_steps import SIBLING, SPINE
from experiments.run_folder import RunFolder
from experiments.studies import conditioned_trees as study
from models.errors import ConfigError


def config(**fields):
    c = recipe.get_config()
    c.heads = "tiny-eagle3"  # for its drafter; no tree of it is grown
    for name, value in fields.items():
        c[name] = value
    return c


def test_no_arm_exceeds_its_budget():
    """And trees use all of it; planted: a chain does not."""
    used = {}
    for entry in study.entries(config()):
        spec = entry.method.topology
        draw = Spec(spec.name).card.draws[0]
        nodes = spec.build({"draw": draw}).nodes
        assert nodes - 1 <= entry.budget
        used[entry.name, entry.budget] = nodes - 1 == entry.budget
    assert len(used) == 5 * len(recipe.BUDGETS)
    assert all(full != name.startswith("chain") for (name, _), full in used.items())


def test_places_are_summed_over_tasks():
    row = {"tree": "t", "budget": 8, "temperature": 0.8}
    rows = [
        {**row, "followed": {SPINE: [3, 4], SIBLING: [0, 1]}},
        {**row, "followed": {SPINE: [1, 4], SIBLING: [0, 0]}},
    ]
    lines = study.followed(rows)["lines"]
    assert lines == [["t", "8", "0.8", "50 % of 8", "0 % of 1"]]
    assert study.share(0, 0) == "–"


@pytest.mark.parametrize(
    ("fields", "words"),
    [({"batch": 5}, "no multiple of"), ({"timed": 9}, "no arm has that budget")],
)
def test_what_cannot_run_is_refused(fields, words, tmp_path):
    with pytest.raises(ConfigError, match=words):
        study.run(config(**fields), RunFolder(tmp_path))
