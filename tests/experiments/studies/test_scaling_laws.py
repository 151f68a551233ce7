"""The stage `scaling_laws`: a study in seconds, and its report of known points."""

import numpy as np
import pytest

from experiments.measurement import machine
from experiments.recipes import settings
from experiments.reporting import report
from experiments.run_folder import RunFolder
from experiments.studies import scaling_laws, scaling_laws_report
from models.errors import ConfigError
from tests.training.small_trainings import corpus, small, small_target  # noqa: F401
from training.runs import draft_model_run


def recipe(source):
    c = settings.load("configs/studies/scaling_laws.py")
    c.tokens, c.sizes, c.head_dim, c.reference = (
        (64, 128),
        ((8, 1), (16, 1)),
        8,
        (16, 1),
    )
    c.data.update(source=source, batch=2, window=16)
    c.train.update(save_every=4, warmup=1, rows_at_once=2)
    c.evaluate.length = 2
    c.tasks, c.temperatures, c.batches = ("text",), (0.8,), (2,)
    c.update(prompts=2, prompt_tokens=8, max_new_tokens=6, batch=2, repeats=1)
    return c


@pytest.mark.long
def test_a_study_and_its_report(small, corpus, tmp_path, monkeypatch):  # noqa: F811
    """Trained, decoded, fitted; a second sitting repeats nothing."""
    monkeypatch.setattr(machine, "last_level_cache", lambda: 2**20)
    c, place = recipe(corpus), RunFolder(tmp_path)
    found = scaling_laws.run(c, place, small)
    points = found["scaling"]["points"]
    assert len(points) == 4 and len({row["parameters"] for row in points}) == 2
    for row in [*points, *found["scaling"]["batches"]]:
        assert row["new"] == [6, 6] and row["same"] == 2
        assert all(3 <= calls <= 6 for calls in row["calls"])
    made = report.write(place, settings.plain(c), found)
    assert {law["what"] for law in made["scaling"]["laws"]} == {"tokens/call", "α"}
    text = (tmp_path / "report.md").read_text()
    assert "| 16 × 1 |" in text and "a doubling adds" in text
    for name in ("by_tokens_t0.8", "by_parameters_t0.8", "by_depth_t0.8", "by_batch"):
        assert (tmp_path / "figures" / f"{name}.png").exists()
    assert "dashed: the law" in (tmp_path / "report.html").read_text()
    monkeypatch.setattr(
        draft_model_run, "Training", None
    )  # planted: training again would fail
    assert scaling_laws.run(c, place, small)["scaling"] == found["scaling"]
    c.tokens = (64, 128, 192)  # chooses points: the old ones are kept
    with pytest.raises(TypeError):
        scaling_laws.run(c, place, small)


def known(slopes=(0.3, 0.1)):
    """Points with the law 1.5 + slopes · log2(x / least), noisy prompts, seed 0."""
    rng, rows = np.random.default_rng(0), []
    for i, tokens in enumerate((1000, 2000, 4000)):
        for j, width in enumerate((32, 64, 128)):
            calls = rng.integers(30, 50, 20)
            rate = 1.5 + slopes[0] * i + slopes[1] * 2 * j
            new = np.round(rate * calls * rng.normal(1, 0.02, 20))
            accepted = np.stack([calls * 0.6, calls * 0.3], 1).round()
            rows.append(
                {
                    "width": width,
                    "layers": 1,
                    "tokens": tokens,
                    "seed": 0,
                    "parameters": width**2 * 100,
                    "temperature": 0.8,
                    "same": 20,
                    "new": new.astype(int).tolist(),
                    "calls": calls.tolist(),
                    "accepted": accepted.astype(int).tolist(),
                }
            )
    return rows


def timed(rows):
    more = {"rounds": 100, "seconds": [2.0, 2.1], "plain_seconds": [4.0, 4.1]}
    return [{**rows[-1], **more, "batch": b} for b in (1, 2, 4)]


def test_laws_of_known_points():
    """The slopes that the points were made with, and none where none is; planted: the
    axes' names exchanged."""
    rows = known()
    made = scaling_laws_report.made({"points": rows, "batches": timed(rows)})
    by = {(law["what"], *law["axes"]): law for law in made["scaling"]["laws"]}
    law = by["tokens/call", "training tokens", "parameters"]
    for i, slope in enumerate((0.3, 0.1)):
        assert law["ci95"][i][0] < slope < law["ci95"][i][1]
        assert not law["ci95"][1 - i][0] < slope < law["ci95"][1 - i][1]
    assert by["tokens/call", "batch"]["slopes"][0] == pytest.approx(0, abs=1e-9)
    lines = next(t for t in made["tables"] if t["title"] == "Laws")["lines"]
    assert [line[:2] for line in lines[:2]] == [
        ["tokens/call", "training tokens"],
        ["tokens/call", "parameters"],
    ]
    assert len(lines) == 2 * 2 + 3


def test_by_depth_is_given_the_draft_before():
    """6 of 10 rounds commit one draft, 3 of them two; planted: of all rounds."""
    row = {"calls": [4, 6], "accepted": [[2, 1, 0], [4, 2, 0]]}
    assert scaling_laws_report.by_depth(row) == [0.6, 0.5, 0.0]
    assert scaling_laws_report.by_depth(row) != [0.6, 0.3, 0.0]
    assert scaling_laws_report.first(row) == [2, 4]


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("sizes", ((8, 1),), "two sizes"),
        ("sizes", ((8, 1), (12, 1)), r"\(12, 1\)"),
        ("reference", (32, 1), "reference"),
        ("batches", (1, 3), "batches of 3"),
    ],
)
def test_mistakes_are_named(field, value, said):
    c = recipe("")
    c.reference = (8, 1)
    c[field] = value
    with pytest.raises(ConfigError, match=said):
        scaling_laws.points(c)


def test_the_recipe_is_complete():
    c = settings.load("configs/studies/scaling_laws.py")
    assert len(scaling_laws.points(c)) == 16
