"""The stage `self_drafts`: its model of time by hand, and a run of each drafter."""

import numpy as np
import pytest

from experiments.measurement import machine
from experiments.recipes import settings
from experiments.reporting import report
from experiments.run_folder import RunFolder
from experiments.studies import self_drafts
from experiments.studies.self_drafts import View
from models.errors import ConfigError
from tests.training.small_trainings import small_target

ONE = {1: 1.0, 4: 2.0, 32: 8.0}.__getitem__  # a call's cost by its nodes
ROW = {
    "depth": 8,
    "head": 2.0,
    "nodes": 4,
    "adapts": False,
    "calls": [10],
    "draft_calls": [30],
    "layers": [60],
}


def test_tokens_per_layer():
    """DEL's worked figure: alpha 0.8, exit 8 of 32, 5 drafts: 0.0512 tokens a layer."""
    tokens = (1 - 0.8**6) / (1 - 0.8)
    speed = tokens / self_drafts.modelled(1, 5 * 8, 5, 32)
    assert speed / 32 == pytest.approx(0.0512, abs=5e-5)


def test_fault_drafts_are_free():
    """Planted: without the drafts' cost, drafts that are all refused lose nothing."""
    args = (10, 30 * 4, 30, 8)
    assert self_drafts.modelled(*args) == 25
    assert 10 / self_drafts.modelled(*args) == 0.4
    assert 10 / self_drafts.modelled(*args, ratio=0.0) == 1  # planted


def test_heads_and_blocks():
    """(8 + 2 layers a call): 10 rounds and (60 + 2 * 30) / 10; DEL reads 10 more."""
    row = {**ROW, "drafter": self_drafts.DEL}
    assert self_drafts.time_of(row, View(), ONE) == [10 + 60 / 8]
    assert self_drafts.time_of(row, View(heads=True), ONE) == [10 + 12]
    assert self_drafts.time_of({**row, "adapts": True}, View(heads=True), ONE) == [24]
    assert self_drafts.time_of(row, View(blocks=True), ONE) == [20 + 60 / 8]


def test_swift_by_hand():
    row = {**ROW, "drafter": self_drafts.SWIFT, "keep": 0.5, "trials": [4]}
    row["context"] = 32
    assert self_drafts.time_of(row, View(), ONE) == [10 + 34 / 2]
    assert self_drafts.time_of(row, View(search=False), ONE) == [25]
    assert self_drafts.time_of(row, View(keep=0.25), ONE) == [10 + 34 / 4]
    assert self_drafts.time_of(row, View(blocks=True), ONE) == [20 + (30 + 32) / 2]


def test_easyspec_by_hand():
    """8 layers in groups of 4: 1 + 2 + 1; half of each in turn: 6. No group: 8."""
    assert self_drafts.fuzzy(8, 4) == 4 and self_drafts.fuzzy(8, 4, 0.5) == 6
    assert self_drafts.fuzzy(8, 1) == self_drafts.fuzzy(8, 1, 0.5) == 8
    assert self_drafts.fuzzy(8, 6) == 3 and self_drafts.fuzzy(1, 4) == 1
    row = {**ROW, "drafter": self_drafts.EASYSPEC, "group": 4}
    spent = self_drafts.time_of(row, View(ratio=0.5), ONE)
    assert spent == [10 + 0.5 * (10 * 8 + 20 * 4) / 8]


def recipe(name: str):
    c = settings.load(f"configs/studies/{name}.py")
    c.update(temperatures=(0.0,), prompts=1, batch=1, prompt_tokens=8)
    c.update(max_new_tokens=6)
    return c


@pytest.mark.long
def test_a_study_and_its_report(tmp_path, monkeypatch):
    """Counts of each drafter of a small target; its report has every table."""
    monkeypatch.setattr(machine, "last_level_cache", lambda: 2**20)
    lm = small_target(4)
    c, place = recipe("del_exits"), RunFolder(tmp_path)
    c.update(methods=("plain", "del_exit", "exit_2_3", "swift"))
    c.update(directions=(("exit_2_3", "plain"),))
    found = self_drafts.run(c, place, lm)
    rows = {row["method"]: row for row in found["self_drafts"]}
    assert all(row["identical_to_plain"] for row in rows.values())
    fixed = rows["exit_2_3"]
    assert fixed["draft_calls"] == [3 * fixed["calls"][0]]
    assert fixed["layers"] == [2 * fixed["draft_calls"][0]]
    adaptive = rows["del_exit"]  # planted: layers of its first exit, or of its last
    assert adaptive["draft_calls"] <= adaptive["layers"]
    assert adaptive["layers"][0] <= 3 * adaptive["draft_calls"][0]
    assert rows["swift"]["keep"] == 1 - 1 / 8 and rows["swift"]["layers"] == [0]
    report.write(place, settings.plain(c), found)
    text = (tmp_path / "report.md").read_text()
    assert "| exit_2_3 ≥ plain | 0 |" in text and "Directions, layers" in text
    assert "all are" in text


@pytest.mark.long
def test_easyspec_of_the_target_itself(tmp_path, monkeypatch):
    """Exact drafts of the target itself are all accepted; planted: noise refuses."""
    monkeypatch.setattr(machine, "last_level_cache", lambda: 2**20)
    lm = small_target(6)
    c = recipe("easyspec")
    c.update(methods=("plain", "group_1"), noises=(0.0, 3.0), directions=())
    found = self_drafts.run(c, RunFolder(tmp_path), lm, lm)
    rows = [row for row in found["self_drafts"] if row["method"] == "group_1"]
    assert rows[0]["calls"] == [1] and rows[1]["calls"] > [1]
    moved = self_drafts.perturbed(lm, 0.5).params
    down = [params["layer_1"]["mlp"]["down"] for params in (moved, lm.params)]
    scale = np.std(down[0] - down[1]) / np.sqrt(np.mean(np.square(down[1])))
    assert 0.45 < scale < 0.55


def test_fault_unknown_drafter_or_view():
    """Planted: a drafter without a model of its time, and a misspelt field."""
    for fault in (
        {"methods": ("plain", "prompt_lookup")},
        {"views": (("layers", {"head": True}),)},
    ):
        c = recipe("del_exits")
        c.update(**fault)
        with pytest.raises(ConfigError):
            self_drafts.run(c, None)
