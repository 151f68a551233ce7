"""Equal budgets, the same prompts, differences by the prompt."""

import numpy as np
import pytest

from decoding import catalogue
from decoding.catalogue import Spec
from experiments import run_folder
from experiments.measurement import bootstrap
from experiments.recipes import settings
from experiments.reporting import report
from experiments.studies import tree_budget
from models.errors import ConfigError

TREES = (
    ("chain", 2, {"name": "topologies/chain", "length": 2}),
    ("rsd_c", 2, {"name": "topologies/rsd_c", "branching": (2,)}),
)


@pytest.fixture
def config():
    config = settings.load("configs/studies/tree_budget.py")
    config.tasks, config.prompts, config.batch = ("text",), 2, 2
    config.prompt_tokens, config.max_new_tokens = 32, 12
    config.temperatures = (0.0,)
    config.trees = TREES
    config.directions = (("rsd_c", "chain"),)
    return config


def test_no_tree_of_the_recipe_exceeds_its_budget():
    config = settings.load("configs/studies/tree_budget.py")
    seen = {}
    for entry in tree_budget.entries(config):
        spec = entry.method.topology
        draw = Spec(spec.name).card.draws[0]
        nodes = spec.build({"draw": draw}).nodes
        assert nodes - 1 <= entry.budget, (entry.name, entry.budget, nodes - 1)
        seen.setdefault(entry.budget, set()).add(entry.name)
        # What has a place is used: a comparison at equal budgets wants full trees.
        assert nodes - 1 >= 0.9 * entry.budget, (entry.name, entry.budget, nodes - 1)
    assert len(seen) == 7 and all(len(names) >= 7 for names in seen.values())
    assert {f"topologies/{n}" for n in seen[30]} <= set(catalogue.names("topologies"))


@pytest.mark.long
def test_a_run_and_its_report(config, tmp_path, lm, draft):
    place = run_folder.RunFolder(tmp_path)
    found = tree_budget.run(config, place, lm, draft)
    rows = found["budget"]
    assert len(rows) == 2 and all(r["drafts"] == 2 for r in rows)
    for row in rows:
        assert row["new"] == [12, 12] and row["ci95"][0] <= row["tokens_per_call"]
        assert row["identical_to_plain"] is True
    report.write(place, settings.plain(config), found)
    text = (tmp_path / "report.md").read_text()
    assert "| rsd_c ≥ chain | 2 | 0 |" in text and "all are" in text
    assert (tmp_path / "figures" / "budget_t0.png").exists()
    config.seed = 1
    assert tree_budget.run(config, place, lm, draft)["budget"] == rows


@pytest.mark.long
def test_sampled_texts_are_not_compared(config, tmp_path, lm, draft):
    """Under rejection only the law is plain decoding's."""
    config.temperatures = (0.8,)
    made = tree_budget.run(config, run_folder.RunFolder(tmp_path), lm, draft)
    assert [r["identical_to_plain"] for r in made["budget"]] == [None, None]
    assert not any("plain" in note for t in made["tables"] for note in t["notes"])


def test_difference_by_hand():
    """Two prompts: 6 / 3 + 6 / 2 against 6 / 6 + 6 / 4 calls; the same rows give 0."""
    more, less = ({"new": [6, 6], "calls": c} for c in ([3, 2], [6, 4]))
    gap, error = bootstrap.difference([more], [less])
    assert gap == pytest.approx(12 / 5 - 12 / 10) and 0 < error < 0.5
    assert bootstrap.difference([more], [more]) == (0.0, 0.0)
    noise = np.random.default_rng(0).integers(2, 6, 200)
    first, second = ({"new": [6] * 100, "calls": c} for c in (noise[:100], noise[100:]))
    gap, error = bootstrap.difference([first], [second])
    assert abs(gap) < 4 * error  # planted: the same law of calls is no difference


def test_a_line_on_identical_texts():
    """Rows of a law that is not plain decoding's token for token have none."""
    good, bad, law = ({"identical_to_plain": x} for x in (True, False, None))
    assert tree_budget.identical([good, good]) == ["plain decoding's texts: all are."]
    assert "1 rows are NOT" in tree_budget.identical([good, bad])[0]
    assert tree_budget.identical([good, law]) == []


def test_mistakes_are_named(config, lm, draft, tmp_path):
    config.trees = (("chain", 1, TREES[0][2]),)
    with pytest.raises(ConfigError, match="verifies 2 drafts"):
        tree_budget.run(config, run_folder.RunFolder(tmp_path), lm, draft)
    config.budgets = (5,)
    with pytest.raises(ConfigError, match="has none"):
        tree_budget.entries(config)
    config.budgets, config.batch = (), 3
    with pytest.raises(ConfigError, match="multiple"):
        tree_budget.run(config, run_folder.RunFolder(tmp_path / "b"), lm, draft)
