"""The stage `conditioned_trees`: its arms and budgets, and what is refused."""

import jax
import pytest

from configs.studies import conditioned_trees as recipe
from decoding.catalogue import Spec
from experiments.measurement import machine
from experiments.measurement.followed_steps import SIBLING, SPINE
from experiments.recipes import settings
from experiments.reporting import report
from experiments.run_folder import RunFolder
from experiments.studies import conditioned_trees as study
from models.errors import ConfigError
from models.heads import dflash
from models.heads.formats import native
from tests.training.small_trainings import small_target


def config(**fields):
    c = recipe.get_config()
    c.heads = "tiny-eagle2"  # for its drafter; no tree of it is grown
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


def test_the_whole_stage(tmp_path, monkeypatch):
    """A tree of one child a depth counts as the chain does; planted: one of two."""
    monkeypatch.setattr(machine, "last_level_cache", lambda: 2**20)  # small arrays
    lm = small_target(2)
    heads = dflash.init(jax.random.key(0), lm.config, layers=1, block=4)
    chain = {"name": "topologies/chain", "length": 3}
    about = {"drafter": "drafters/dflash", "topology": chain}
    native.save(tmp_path / "heads", heads, {"head": "dflash", "method": about})
    tree = {"name": "topologies/best_first", "depth": 3}
    trees = (
        ("chain", 3, chain),
        ("one", 3, {**tree, "nodes": 4, "children": 1}),
        ("two", 6, {**tree, "nodes": 7, "children": 2}),
    )
    c = config(heads=str(tmp_path / "heads"), trees=trees, timed=6, larger=5_000_000)
    c.update(prompts=2, batch=2, prompt_tokens=16, max_new_tokens=12, alone=1)
    c.update(temperatures=(0.8,), repeats=1)
    c.directions = (("two", "one"),)
    store = RunFolder(tmp_path / "run")
    found = study.run(c, store, lm)
    counts = {row["tree"]: (row["calls"], row["followed"]) for row in found["counted"]}
    assert counts["one"] == counts["chain"] != counts["two"]
    report.write(store, settings.plain(c), found)
    text = (tmp_path / "run" / "report.md").read_text()
    for title in ("The next token is among", "## Speed", "What a table and its tree"):
        assert title in text


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
