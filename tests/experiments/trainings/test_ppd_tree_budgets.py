"""PPD's budgets: what is timed, which one is taken, and where that is said."""

import importlib

import jax
import numpy as np
import pytest

from decoding import Method
from decoding.tree_design import ppd_sparse_trees
from experiments.measurement import workbench
from experiments.recipes import settings
from experiments.run_folder import RunFolder
from experiments.trainings import draft_heads, ppd_tree_budgets
from models.errors import ConfigError
from models.heads import ppd
from models.heads.formats import native

# Of two prompts: 2.06 tokens a round are expected within 6, 2.33 within 18.
HITS = ((0.5, 0.2, 0.1, 0.05, 0.02), (0.5, 0.1, 0.05, 0.03, 0.02))
TASKS = {"text": [[1, 2, 3, 4], [5, 6, 7, 8]]}


def recipe(folder):
    c = importlib.import_module("configs.heads.ppd").get_config()
    c.init.prompts, c.tree_budget, c.tree_budgets = 2, 6, (6, 18)
    c.update(tasks=("text",), prompt_tokens=8, max_new_tokens=8)
    c.export = str(folder / "export")
    return c


def piece(lm, folder):
    """Heads of `lm` as the stage takes them from a finished training."""
    c = recipe(folder)
    params = ppd.init(jax.random.key(0), lm.model, lm.params, 2)
    given = ppd_tree_budgets.method(c, HITS, 6).to_config()
    native.save(c.export, params, {"head": "ppd", "method": given})
    return draft_heads._Piece(c, RunFolder(folder), lm, "ppd", c, {"hits": HITS})


@pytest.mark.long
def test_every_budget_is_timed(lm, tmp_path):
    """Real rounds: the block of every budget, and the greatest rate is taken."""
    found = piece(lm, tmp_path).fastest(HITS, TASKS)
    small, large = found["rounds"]
    assert (small["budget"], small["nodes"]) == (6, 6 + 1 + 2)
    assert large["budget"] == 18 and small["nodes"] < large["nodes"] <= 18 + 1 + 2
    for entry in (small, large):
        made = ppd_sparse_trees.sparse(HITS, entry["budget"])
        assert entry["ms"] > 0 and entry["tokens"] == made.tokens
        assert entry["tokens_per_s"] == pytest.approx(1e3 * made.tokens / entry["ms"])
    best = max(found["rounds"], key=lambda entry: entry["tokens_per_s"])
    assert found["budget"] == best["budget"]
    table = ppd_tree_budgets.table([("ppd", 0, found)])
    assert [line[2].endswith("(taken)") for line in table["lines"]] == [
        entry is best for entry in found["rounds"]
    ]


@pytest.mark.parametrize(("large", "budget"), [(1.0, 18), (3.0, 6)])
def test_the_export_names_what_was_taken(lm, tmp_path, monkeypatch, large, budget):
    """Rounds of given times. A second sitting measures nothing and agrees."""
    times = iter([(1.0, large)] * 4 + [(9.0, 1.0)])  # one turn that was disturbed

    def interleaved(self, cases, prompts, seed):
        assert prompts == TASKS["text"][:1] and {c.temperature for c in cases} == {0.8}
        return [workbench.Run(seconds=s, rounds=1) for s in next(times)]

    monkeypatch.setattr(workbench.Bench, "interleaved", interleaved)
    head = piece(lm, tmp_path)
    first = native.method(tmp_path / "export")
    found = head.fastest(HITS, TASKS)
    assert found["budget"] == budget
    wanted = ppd_tree_budgets.method(head.recipe, HITS, budget)
    named = Method.from_config(native.method(tmp_path / "export"))
    assert head.method == wanted == named
    # Planted: what the training wrote is another method where another was taken.
    assert (Method.from_config(first) == named) == (budget == 6)
    assert native.describe(tmp_path / "export")["head"] == "ppd"
    monkeypatch.setattr(workbench.Bench, "interleaved", None)  # planted: measured again
    again = piece(lm, tmp_path)
    assert again.fastest(HITS, TASKS) == found and again.method == wanted


def test_budgets_are_looked_at_before_training(tmp_path):
    c = recipe(tmp_path)
    assert draft_heads.plan(c) == [(0, "ppd", c)]
    c.tree_budgets = (18, 2)
    with pytest.raises(ConfigError, match=r"tree_budgets=\(18, 2\).*from 3 on"):
        draft_heads.plan(c)
    c = settings.override(recipe(tmp_path), ["--config.tree_budgets=(6,12,18)"])
    np.testing.assert_array_equal(c.tree_budgets, (6, 12, 18))
