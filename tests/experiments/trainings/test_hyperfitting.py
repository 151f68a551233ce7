"""The stage `hyperfitting`: from a recipe to a trained model and a report."""

import copy

import jax
import numpy as np
import pytest

import models
from configs.language_models import hyperfitting as hyperfitting_recipe
from experiments import stage
from experiments.recipes import settings
from experiments.reporting import report
from experiments.run_folder import RunFolder
from experiments.trainings import hyperfitting
from models.errors import ConfigError
from tests.training.small_trainings import corpus, small  # noqa: F401
from training.runs import hyperfitting_run


def recipe(source: str):
    c = hyperfitting_recipe.get_config()
    c.data.update(source=source, samples=4, window=24, batch=2, epochs=2, held=3)
    c.train.update(rate=0.01, save_every=2, evaluate_every=4, rows_at_once=0)
    c.evaluate.update(prompts=2, prompt_tokens=8, new_tokens=12, last=6, seeds=2)
    del c.arms.repetition_penalty, c.arms.rpg
    return c


def test_run(corpus, small, tmp_path):  # noqa: F811
    """Twice the same figures, without another step; planted: a rate of 0."""
    c, folder = recipe(corpus), RunFolder(str(tmp_path / "run"))
    folder.claim(c, ())
    found = hyperfitting.run(c, folder, small)
    trained = found["trained"]
    figures = trained["figures"]
    assert figures["steps"] == 4 and len(figures["curve"]) == 1
    assert {"ttr", "loops", "nats"} < {*figures["curve"][0]}
    assert len(figures["after"]["nats"]) == 3
    assert figures["after"]["loss"] < figures["before"]["loss"]
    for name in ("greedy", "top_p", "hyperfitted"):
        row = trained[name]
        assert {len(row[x]) for x in hyperfitting.COLUMNS} == {2}
        counts = [len(texts) for texts in row["tokens"]]
        assert counts == [2 if name == "top_p" else 1] * 2
        lengths = {len(text) for texts in row["tokens"] for text in texts}
        assert lengths == {12}
        assert all(1 / 6 <= x <= 1 for x in row["ttr"])
    params = models.load(str(tmp_path / "run" / "export")).params
    same = lambda tree: all(
        jax.tree.leaves(jax.tree.map(np.array_equal, tree, small.params))
    )
    assert not same(params)

    curve = (tmp_path / "run" / "training" / "metrics.jsonl").read_bytes()
    again = hyperfitting.run(c, folder, small)
    assert again["trained"] == trained and again["tables"] == found["tables"]
    assert (tmp_path / "run" / "training" / "metrics.jsonl").read_bytes() == curve
    found["commands"] = []
    report.write(folder, settings.plain(c), found)
    page = (tmp_path / "run" / "report.md").read_text()
    assert "type-token ratio: hyperfitted − top_p" in page

    c.train.rate, still = 0.0, tmp_path / "still"
    figures = hyperfitting_run.run(c, still, small)
    assert figures["after"] == figures["before"]
    assert same(models.load(str(still / "export")).params)


def fake():
    """Rows and figures in which every claim holds."""
    row = lambda ttr, loops: {
        "ttr": [ttr, ttr + 0.01],
        "grams": [loops, loops],
        "loops": [loops, loops],
        "nats": [1.0, 1.0],
        "cited": [3, 4],
    }
    rows = {"greedy": row(0.2, 0.9), "top_p": row(0.5, 0.1)}
    rows["hyperfitted"] = row(0.7, 0.0)
    graded = lambda nats, entropy, loss: {
        "nats": [nats, nats],
        "entropy": [entropy, entropy],
        "hits": [0.5, 0.5],
        "loss": loss,
    }
    trained = {"before": graded(2.0, 1.5, 1.4), "after": graded(6.0, 0.2, 0.05)}
    return rows, trained


def test_claims():
    """Planted: texts of the arms exchanged, and figures of before and after."""
    rows, trained = fake()
    table = hyperfitting.directions(rows, trained)
    assert [line[-1] for line in table["lines"]] == ["yes"] * 6
    assert "0.050 nats, near zero" in " ".join(table["notes"])
    exchanged = {**rows, "hyperfitted": rows["greedy"], "greedy": rows["hyperfitted"]}
    table = hyperfitting.directions(exchanged, trained)
    assert [line[-1] for line in table["lines"][:4]] == ["no"] * 4
    turned = {"before": trained["after"], "after": trained["before"]}
    table = hyperfitting.directions(rows, turned)
    assert [line[-1] for line in table["lines"][4:]] == ["no"] * 2
    assert "not near zero" in " ".join(table["notes"])


def test_wrong_recipes(corpus, small, tmp_path):  # noqa: F811
    c, folder = recipe(corpus), RunFolder(str(tmp_path))
    changed = copy.deepcopy(c)
    del changed.arms.top_p
    with pytest.raises(ConfigError, match="needs 'greedy' and 'top_p'"):
        hyperfitting.run(changed, folder, small)
    c.evaluate.prompts = 4
    with pytest.raises(ConfigError, match=r"most data\.held=3"):
        hyperfitting_run.Training(c, tmp_path, small)


def test_the_stage_is_found():
    assert stage.find("hyperfitting") is hyperfitting.STAGE
