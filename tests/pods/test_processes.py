"""Several processes train and decode what one does; checkpoints go between meshes.

On this machine, with virtual devices and gloo between them.
"""

import argparse
import json
import os
import pathlib
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

from experiments import run
from experiments.launch import join, local_processes
from models.errors import ConfigError
from tests.pods import drafted, meshes, processes
from tests.training.loop import killed_run
from training.data import text_corpus
from training.teacher import sources

SCRIPT = pathlib.Path(__file__).parent / "processes.py"


def started(count: int, devices: int, *arguments: str) -> list[subprocess.Popen]:
    """`count` processes of `devices` virtual devices each."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    told = {
        "PYTHONPATH": str(SCRIPT.parent.parent.parent),
        "XLA_FLAGS": os.environ["XLA_FLAGS"] + " --xla_backend_optimization_level=1",
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": str(devices),
        "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
        "JAX_COORDINATOR_ADDRESS": f"localhost:{port}",
        "JAX_NUM_PROCESSES": str(count),
    }
    return [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **told, "JAX_PROCESS_ID": str(i)},
        )
        for i in range(count)
    ]


def curve(workdir: pathlib.Path) -> np.ndarray:
    """float[steps]: the losses that a run wrote."""
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["step"] for row in rows] == list(range(1, len(rows) + 1))
    return np.array([row["loss"] for row in rows])


def agree(count: int, devices: int, tmp_path: pathlib.Path) -> None:
    running = started(count, devices, str(tmp_path))
    said = [process.communicate(timeout=300) for process in running]
    for process, (_, errors) in zip(running, said):
        assert process.returncode == 0, errors[-3000:]
    found = json.loads(said[0][0].splitlines()[-1])
    assert found["processes"] == count
    assert not any("texts" in out for out, _ in said[1:]), "only process 0 speaks"
    # A row of each is a batch that four devices divide where there are four processes.
    assert bool(found["refused"]) == (count < 4)
    told = f"{count} rows, read by {count} processes, do not divide"
    assert count == 4 or told in found["refused"]
    assert found["texts"] == meshes.texts(meshes.model(), "plain", None)
    processes.write(meshes.model(), tmp_path / "one.jsonl")
    whole = (tmp_path / "one.jsonl").read_bytes()
    assert (tmp_path / "texts.jsonl").read_bytes() == whole
    assert (tmp_path / "fault.jsonl").read_bytes() != whole  # planted: all write
    same_features(tmp_path)
    stream = killed_run.stream()
    one = tmp_path / "one"
    processes.train(one, processes.STEPS, None, text_corpus.DataIterator(stream))
    # Half of the run by several processes, the rest by this one on one device.
    half = tmp_path / "half"
    assert len(curve(half)) == processes.STEPS // 2
    processes.train(half, processes.STEPS, None, text_corpus.DataIterator(stream))
    for name in ("whole", "half"):
        np.testing.assert_allclose(curve(tmp_path / name), curve(one), rtol=1e-5)
    off = np.abs(curve(tmp_path / "fault") / curve(one) - 1)
    assert off.max() > 1e-3  # planted: the same rows in every process


def same_features(tmp_path: pathlib.Path) -> None:
    """What all processes wrote is what one writes."""
    sources.build(processes.lesson(tmp_path / "alone"))
    folders = (tmp_path / "features", tmp_path / "alone")
    theirs, own = (sources.open_cache(processes.lesson(f)) for f in folders)
    assert theirs.there.all() and theirs.about == own.about
    for number in range(theirs.rows):
        tokens = killed_run.stream().windows([number])["tokens"][0]
        found, wanted = (c.read(number, tokens)["hidden/norm"] for c in (theirs, own))
        np.testing.assert_allclose(found, wanted, atol=2e-5)
        assert np.abs(np.roll(found, 1, 0) - wanted).max() > 0.1  # planted


def test_two_processes_agree_with_one(tmp_path):
    agree(2, 2, tmp_path)


@pytest.mark.long
def test_four_processes_agree_with_one(tmp_path):
    agree(4, 2, tmp_path)


# What a clock says, and what is named after the seed.
TIMES = (
    "tokens_per_s",
    "speedup",
    "speedup_with_prefill",
    "ms_per_round",
    "prefill_seconds",
    "mbu",
    "draft_share",
    "compile_seconds",
    "by_repeat",
    "speedup_ci95",
    "seconds",
    "plain_seconds",
)
QUICK = (
    "--config=configs/quickstart.py",
    "--config.methods=('plain', 'model_tree', 'token_recycling')",
    "--config.tasks=('code',)",
    "--config.prompts=2",
    "--config.max_new_tokens=32",
    "--config.repeats=1",
    "--config.widths=(1, 8)",
    "--config.width=('paper',)",
)


def reported(folder: pathlib.Path, *sizes: int, seed: int = 0) -> list[dict]:
    """The rows of a run of the quickstart, and every text with its origin."""
    given = [*QUICK, f"--config.seed={seed}", f"--workdir={folder}"]
    assert local_processes.run(given, *sizes) == 0
    found = json.loads((folder / "report.json").read_text())["rows"]
    for row in found:
        piece = json.loads((folder / "rows" / f"{row.pop('key')}.json").read_text())
        row["samples"] = piece["samples"]
        for name in (*TIMES, "seed"):
            del row[name]
    return found


@pytest.mark.long
def test_two_processes_report_the_rows_of_one(tmp_path):
    """Of the quickstart, on fewer prompts; planted: texts of another seed."""
    one = reported(tmp_path / "one", 1, 1)
    assert len(one) == 6
    assert reported(tmp_path / "two", 2, 2) == one
    other = reported(tmp_path / "other", 1, 1, seed=1)
    assert other[:3] == one[:3]  # greedy
    assert all(a != b for a, b in zip(other[3:], one[3:]))


@pytest.mark.long
def test_two_processes_choose_one_width(tmp_path):
    """By the times of process 0: other rounds in the other process would never end."""
    given = [*QUICK[:-1], "--config.width=('auto',)", "--config.trees=()"]
    assert local_processes.run([*given, f"--workdir={tmp_path}"], 2, 2) == 0
    rows = json.loads((tmp_path / "report.json").read_text())["rows"]
    assert [row["width"] for row in rows].count("auto") == 4
    assert all(row["identical_to_plain"] for row in rows)


DRAFT = {
    "data.batch": 4,
    "data.window": 32,
    "data.tokens": 512,
    "data.pretraining_tokens": 512,
    "draft.d_model": 32,
    "draft.n_layers": 1,
    "draft.d_ff": 32,
    "distill.prompts": 8,
    "distill.held": 4,
    "distill.prompt_tokens": 16,
    "distill.new_tokens": 16,
    "distill.temperatures": (0.0, 0.8),
    "distill.batch": 4,
    "train.evaluate_every": 4,
    "train.warmup": 1,
    "evaluate.prompts": 2,
    "evaluate.prompt_tokens": 16,
    "evaluate.new_tokens": 8,
    "temperatures": (0.8,),
    "prompts": 2,
    "prompt_tokens": 64,
    "max_new_tokens": 16,
    "repeats": 1,
}


@pytest.mark.long
def test_two_processes_train_a_draft_like_one(tmp_path):
    """FastDraft: the target's text byte for byte, and what every variant comes to.

    Planted: the figures of the other variant.
    """
    source = drafted.corpus(tmp_path / "corpus")
    fields = {**DRAFT, "data.source": source}
    given = ["--config=configs/draft_models/fastdraft.py"]
    given += [f"--config.{name}={value}" for name, value in fields.items()]
    found, texts = [], []
    for count, devices in ((1, 1), (2, 2)):
        folder = tmp_path / f"{count}"
        assert local_processes.run([*given, f"--workdir={folder}"], count, devices) == 0
        own = json.loads((folder / "drafts" / "figures.json").read_text())
        ends = [own["before"], *(v["after"] for v in own["variants"].values())]
        found.append([[end[name] for name in sorted(end)] for end in ends])
        written = sorted((folder / "drafts" / "written").glob("*.jsonl"))
        texts.append([path.read_bytes() for path in written])
    assert texts[0] == texts[1] and len(texts[0]) == 4
    np.testing.assert_allclose(found[0], found[1], rtol=1e-4)
    assert not np.allclose(found[0][1], found[1][2], rtol=1e-4)


def test_processes_meet_before_a_device_is_looked_for(tmp_path, monkeypatch, capsys):
    """A terminal that asks which process it is of would make the back end."""

    def early(*_):
        raise AssertionError("the back end is made before the processes have met")

    def start(values):
        raise ConfigError("they met")

    monkeypatch.setattr(processes.jax, "process_index", early)
    monkeypatch.setattr(join, "start", start)
    given = ["--config=configs/quickstart.py", f"--workdir={tmp_path}"]
    assert run.main(given) == 2
    assert "they met" in capsys.readouterr().err


@pytest.mark.long
def test_one_dead_process_ends_all_within_a_minute(tmp_path):
    running = started(2, 1, str(tmp_path), "die")
    running[1].communicate(timeout=200)
    began = time.monotonic()
    _, errors = running[0].communicate(timeout=120)
    assert running[1].returncode == 9 and running[0].returncode != 0
    assert time.monotonic() - began < 60
    assert "process" in errors or "task" in errors


@pytest.mark.parametrize(
    "given", [{"num_processes": "2"}, {"coordinator": "h:1", "num_processes": "2"}]
)
def test_half_of_the_flags_is_refused(given, monkeypatch):
    parser = argparse.ArgumentParser()
    join.define(parser)
    words = [f"--{name}={value}" for name, value in given.items()]
    with pytest.raises(ConfigError, match="process_id"):
        join.start(parser.parse_args(words))


def test_launchers_are_recognised():
    assert not join.managed({})
    assert not join.managed({"SLURM_NTASKS": "1", "SLURM_PROCID": "0"})
    assert join.managed({"SLURM_NTASKS": "4", "SLURM_PROCID": "0"})
    assert not join.managed({"TPU_WORKER_HOSTNAMES": "localhost"})
    assert join.managed({"TPU_WORKER_HOSTNAMES": "a,b"})
    assert join.managed({"TPU_WORKER_HOSTNAMES": "a", "MEGASCALE_NUM_SLICES": "2"})
