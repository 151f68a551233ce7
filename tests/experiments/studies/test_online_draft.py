"""What a draft that learns recovers, against ones that do not."""

import types

import numpy as np
import pytest

from experiments.measurement import machine
from experiments.recipes import settings
from experiments.reporting import report
from experiments.run_folder import RunFolder
from experiments.studies import online_draft
from models.errors import ConfigError
from tests.training.runs import test_online_draft_run
from tests.training.small_trainings import corpus, small, small_target  # noqa: F401
from training.data import documents


def recipe(**fields):
    c = settings.load("configs/studies/online_draft.py")
    c.update(fields)
    return c


@pytest.mark.long
def test_a_switch_of_domain():
    """Two domains of a table model: most comes back to the draft that goes on."""
    c = recipe(before=14, after=20, settled=4, steps=8, rate=0.005, temperature=1.0)
    c.update(prompt_tokens=2, max_new_tokens=24)
    c.method.drafter.update(places=128, window=4, best=4)
    c.method.topology.length = 3
    target, draft = test_online_draft_run.target(), test_online_draft_run.draft()
    streams = []
    for at, calls in enumerate((14, 20)):
        own = documents.Documents([np.arange(6) + 6 * at], None)
        rows = documents.requests(target, own, 8 * calls, 2, 24, (0, at))
        streams.append([rows[i : i + 8] for i in range(0, len(rows), 8)])
    served = online_draft._served(c, target, draft, streams, lambda rate: None)
    found = online_draft.summary(served, 4)
    assert found["recovered"] > 0.8 and found["recovered_ci95"][0] > 0.5
    # Planted: a draft that stopped, or never learned, is far from where it was.
    assert found["before"] - found["after_stopped"] > 0.3
    assert found["after_learning"] - found["after_never"] > 0.3
    assert found["equal"] == found["texts"] == 34 * 8


def test_summary_by_hand():
    """40 tokens in 10 calls; then 20, 32 and 16 of as many in 10 each."""

    def calls(new):
        return [{"new": [new, new], "calls": [10, 10], "tokens": [[new], [1]]}]

    served = {
        arm: {"first": calls(first), "second": calls(second)}
        for arm, first, second in (
            (online_draft.LEARNING, 40, 32),
            (online_draft.STOPPED, 40, 20),
            (online_draft.NEVER, 30, 16),
        )
    }
    found = online_draft.summary(served, 1)
    assert found["lost"] == pytest.approx(2.0)
    assert found["recovered"] == pytest.approx(0.6)
    assert (found["texts"], found["equal"]) == (4, 2)
    served[online_draft.STOPPED]["second"] = calls(45)
    assert online_draft.summary(served, 1)["recovered"] is None  # nothing was lost


@pytest.mark.long
def test_a_study_and_its_report(small, corpus, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setattr(machine, "last_level_cache", lambda: 2**20)
    c = recipe(first=corpus, second=corpus, before=2, after=2, settled=1, every=2)
    c.update(prompt_tokens=8, max_new_tokens=6)
    c.method.drafter.update(places=8, window=8, best=4)
    place = RunFolder(tmp_path)
    found = online_draft.run(c, place, small, small)
    assert found["online"][0]["texts"] == 8
    made = report.write(place, settings.plain(c), found)
    text = (tmp_path / "report.md").read_text()
    assert made["online"] and "| never |" in text and "lost:" in text
    never = lambda *_: pytest.fail("what was served was served again")
    monkeypatch.setattr(online_draft, "_served", never)
    assert online_draft.run(c, place, small, small)["online"] == found["online"]


def test_bad_settings(tmp_path):
    lm = types.SimpleNamespace()
    with pytest.raises(ConfigError, match=r"config\.second is empty"):
        online_draft.run(recipe(), RunFolder(tmp_path), lm, lm)
    with pytest.raises(ConfigError, match=r"config\.settled=200"):
        online_draft.run(
            recipe(second="x.jsonl", settled=200), RunFolder(tmp_path), lm, lm
        )
