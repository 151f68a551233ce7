"""The stage `pearl_overlap`: runs of accepted drafts, and the times of two devices."""

import numpy as np
import pytest

from decoding.conformance import kit
from experiments.measurement import machine
from experiments.measurement.workbench import Bench, Case
from experiments.recipes import settings
from experiments.reporting import report
from experiments.run_folder import RunFolder
from experiments.studies import pearl_overlap
from models.errors import ConfigError
from tests.decoding.drafters.test_pearl import near
from tests.training.small_trainings import corpus, small, small_target  # noqa: F401

PROMPTS = [[1, 2], [3, 1, 2], [2]]


def recipe():
    c = settings.load("configs/studies/pearl_overlap.py")
    c.update(gammas=(2,), tasks=("text",), temperatures=(0.0, 0.8))
    c.update(prompts=2, batch=2, prompt_tokens=8, max_new_tokens=6)
    return c


def walked(origin: list[int], length: int) -> int:
    """Runs begun in a chain's text, token by token."""
    begun, last = 1, 0
    for at, depth in enumerate(origin):
        if depth == 0 and last < length and at + 1 < len(origin):
            begun += 1
        last = depth
    return begun


@pytest.mark.long
@pytest.mark.parametrize(
    "right",
    [pytest.param(True, marks=pytest.mark.long), False],
    ids=["its own draft", "another"],
)
def test_runs(right):
    """A draft that is always right has one run; another's are counted by hand."""
    lm = kit.model(0, vocab=4)
    draft = lm if right else near(lm, kit.model(1, vocab=4))
    bench = Bench(lm, {"draft": draft}, 4, 24, len(PROMPTS))
    for name in (pearl_overlap.CHAIN, pearl_overlap.PEARL):
        run = bench.once(Case(pearl_overlap.method(name, 3), 0.8), PROMPTS, 0)
        found = pearl_overlap.runs(name, run)
        if right:
            assert found == [1] * len(PROMPTS)
        elif name == pearl_overlap.CHAIN:
            assert found == [walked(x, 3) for x in run.origin]
            assert min(found) > 1 and found != run.calls  # planted: rounds, not runs
        else:
            assert all(1 < n <= c for n, c in zip(found, run.calls, strict=True))
            assert found != run.calls  # planted: as if no tail were ever whole


def test_modelled_times():
    """Serial: 5 (3 * 2 + 9) ms; in parallel the longer of 3 * 2 and 7, five times."""
    costs = {3: 7.0, 4: 9.0}
    assert pearl_overlap.modelled(pearl_overlap.CHAIN, 3, 5, costs, 2.0) == 75.0
    assert pearl_overlap.modelled(pearl_overlap.PEARL, 3, 5, costs, 2.0) == 35.0


@pytest.mark.long
def test_a_study_and_its_report(small, tmp_path, monkeypatch):  # noqa: F811
    """The target drafts for itself: chains of 3 tokens a call, and runs without end."""
    monkeypatch.setattr(machine, "last_level_cache", lambda: 2**20)
    c, place = recipe(), RunFolder(tmp_path)
    found = pearl_overlap.run(c, place, small, small)
    rows = found["parallel"]
    assert len(rows) == 4 and all(row["identical_to_plain"] for row in rows)
    assert all(np.array_equal(row["runs"], [1, 1]) for row in rows)
    made = report.write(place, settings.plain(c), found)
    text = (tmp_path / "report.md").read_text()
    assert made["parallel"]
    assert "| chain | 2 | 3.00 (3.00–3.00) | 6.00 (6.00–6.00) |" in text
    assert "| +3.00 ± 0.00 |" in text and "all are." in text
    never = lambda *_: pytest.fail("a finished row was measured again")
    monkeypatch.setattr(pearl_overlap, "row", never)
    assert pearl_overlap.run(c, place, small, small)["parallel"] == rows


def test_bad_settings(small, tmp_path):  # noqa: F811
    c = recipe()
    c.gammas = (1, 2)
    with pytest.raises(ConfigError, match=r"config\.gammas=\(1, 2\)"):
        pearl_overlap.run(c, RunFolder(tmp_path), small, small)
    c.gammas, c.batch = (2,), 3
    with pytest.raises(ConfigError, match=r"config\.prompts=2"):
        pearl_overlap.run(c, RunFolder(tmp_path), small, small)
