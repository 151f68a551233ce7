"""The stage `prompt_set`: its file, its figures, and what a kill leaves of both."""

import json
import os
import shlex
import signal

import pytest

from decoding.serving import continuous_batching
from experiments import run, run_folder
from experiments.recipes import settings
from experiments.reporting import report
from experiments.studies import prompt_set
from models.errors import CheckpointError, ConfigError, DataError
from tests.stress import kill_and_resume
from training.loop import preemption


@pytest.fixture
def config(tmp_path):
    config = settings.load("configs/prompt_set.py")
    lines = [{"prompt": f"case {i}: " + "ab" * i} for i in range(10)]
    lines[4]["max_new_tokens"] = 3
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    with config.unlocked():
        config.recipe, config.data, config.batch = "prompt_lookup", str(file), 3
        config.max_new_tokens, config.compare = 24, False
    return config


def execute(config, folder, lm):
    place = run_folder.RunFolder(folder)
    place.claim(config, prompt_set.STAGE.resumable_fields)
    found = prompt_set.run(config, place, lm)
    return report.write(place, settings.plain(config), found)


def test_report_and_lines(config, tmp_path, lm):
    with config.unlocked():
        config.compare = True
    made = execute(config, tmp_path / "w", lm)
    rows = [json.loads(x) for x in (tmp_path / "w" / "texts.jsonl").open()]
    assert [r["index"] for r in rows] == list(range(10))
    assert len(rows[4]["tokens"]) - rows[4]["prompt_tokens"] <= 3
    (table,) = made["tables"]
    assert [line[0] for line in table["lines"]] == [
        "written",
        "refilled",
        "batch by batch",
    ]
    new = sum(len(r["tokens"]) - r["prompt_tokens"] for r in rows)
    assert {line[2] for line in table["lines"]} == {str(new)}
    assert all(line[1] == "10" for line in table["lines"])
    share = lambda line: float(line[6].split()[0])
    written, refilled, fixed = table["lines"]
    assert share(written) == share(refilled) > share(fixed)
    assert (
        "A set of prompts decoded with tiny" in (tmp_path / "w/report.md").read_text()
    )


def test_stopped_and_started_again(config, tmp_path, lm, monkeypatch):
    """By SIGTERM after the fourth text and once more later: the same bytes, and
    figures over all sittings."""
    execute(config, tmp_path / "whole", lm)
    sound, seen = prompt_set.Journal.note, []

    def note(self, text):
        sound(self, text)
        seen.append(text.request)
        if len(seen) in (4, 7):
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(prompt_set.Journal, "note", note)
    for _ in range(2):
        with preemption.watch(), pytest.raises(preemption.Preempted):
            execute(config, tmp_path / "w", lm)
    made = execute(config, tmp_path / "w", lm)
    texts = [(tmp_path / w / "texts.jsonl").read_bytes() for w in ("whole", "w")]
    assert texts[0] == texts[1]
    (written,) = made["tables"][0]["lines"]
    assert written[1] == "10" and len(seen) >= 10
    timings = run_folder.RunFolder(tmp_path / "w").lines("timings")
    assert {t["sitting"] for t in timings} == {0, 1, 2}


def test_fault_lines_as_they_come(config, tmp_path, lm, monkeypatch):
    """Planted: a text is written when it is done, so that the order is lost."""
    execute(config, tmp_path / "whole", lm)
    sound = continuous_batching.decode_requests

    def numbered(*arguments, **fields):
        for i, text in enumerate(sound(*arguments, **fields)):
            yield text._replace(request=i)

    monkeypatch.setattr(continuous_batching, "decode_requests", numbered)
    execute(config, tmp_path / "w", lm)
    texts = [(tmp_path / w / "texts.jsonl").read_bytes() for w in ("whole", "w")]
    assert texts[0] != texts[1]


def test_what_changed_is_shown(config, tmp_path, lm):
    execute(config, tmp_path / "w", lm)
    with config.unlocked():
        config.batch = 2  # no text depends on it
    execute(config, tmp_path / "w", lm)
    with config.unlocked():
        config.temperature = 0.5
    with pytest.raises(ConfigError, match=r"temperature: 0.8 -> 0.5"):
        execute(config, tmp_path / "w", lm)
    (tmp_path / "w" / "config.json").unlink()
    with pytest.raises(DataError, match=r"temperature: 0.8 there, 0.5 here"):
        execute(config, tmp_path / "w", lm)


@pytest.mark.long
def test_a_run_that_cannot_write(config, tmp_path, lm, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"cannot be written.*--workdir"):
        run_folder.RunFolder(tmp_path / "file" / "run")

    def full(*_):
        raise OSError(28, "No space left on device")

    place = run_folder.RunFolder(tmp_path / "w")
    place.claim(config)
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(CheckpointError, match=r"x.json cannot be written.*No space"):
        place.make("rows", "x", lambda: 1)
    monkeypatch.undo()
    assert not list((tmp_path / "w" / "rows").iterdir())  # no half of a file is left
    assert place.make("rows", "x", lambda: 1) == 1
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataError, match=r"texts.jsonl cannot be written.*No space"):
        execute(config, tmp_path / "v", lm)


def test_a_torn_line_of_a_log(tmp_path):
    place = run_folder.RunFolder(tmp_path)
    place.append("timings", a=1)
    with (tmp_path / "timings.jsonl").open("a") as file:
        file.write('{"a": 2')
    again = run_folder.RunFolder(tmp_path)
    again.append("timings", a=3)
    assert again.lines("timings") == [{"a": 1}, {"a": 3}]


def test_status_of_the_command(config, tmp_path, monkeypatch, capsys):
    def stage(*_):
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(run, "run", stage)
    command = ["--config=configs/prompt_set.py", f"--workdir={tmp_path}"]
    assert run.main(command) == preemption.REQUEUE
    said = capsys.readouterr().err
    assert said.endswith(f"; resume: python -m experiments.run {shlex.join(command)}\n")


def kill(tmp_path, kind, kills_, terms):
    tally = kill_and_resume.kill(kind, tmp_path / kind, kills_, terms)
    assert tally.wrong == []
    assert (tally.killed, tally.preempted) == (kills_, terms)
    assert tally.resumed == kills_ + terms and tally.compared >= 1
    return tally


@pytest.mark.long
@pytest.mark.parametrize("kind", kill_and_resume.KINDS)
def test_signals_at_random_times(tmp_path, kind):
    """25 SIGKILLs and 10 SIGTERMs of each kind of run, 70 in all; of those in training
    at least 10 fall into a checkpoint's writing."""
    tally = kill(tmp_path, kind, 25, 10)
    assert kind == "prompts" or tally.inside >= 10


@pytest.mark.long
def test_fault_a_run_that_begins_anew(tmp_path, monkeypatch):
    """Planted: the comparison is with a run of another seed's texts."""
    sound = kill_and_resume.texts
    monkeypatch.setitem(
        kill_and_resume.KINDS, "prompts", lambda f: [x + f.name for x in sound(f)]
    )
    assert kill_and_resume.kill("prompts", tmp_path / "k", 1, 0).wrong
