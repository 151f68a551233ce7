"""Several processes train and decode what one does; checkpoints go between meshes.

On this machine, with virtual devices and gloo between them.
"""

import json
import os
import pathlib
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

from experiments import distributed
from models.errors import ConfigError
from tests.pods import meshes, processes
from tests.training import killed_run
from training import data

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
    assert found["texts"] == meshes.texts(meshes.model(), "plain", None)
    stream = killed_run.stream()
    one = tmp_path / "one"
    processes.train(one, processes.STEPS, None, data.DataIterator(stream))
    # Half of the run by several processes, the rest by this one on one device.
    half = tmp_path / "half"
    assert len(curve(half)) == processes.STEPS // 2
    processes.train(half, processes.STEPS, None, data.DataIterator(stream))
    for name in ("whole", "half"):
        np.testing.assert_allclose(curve(tmp_path / name), curve(one), rtol=1e-5)
    off = np.abs(curve(tmp_path / "fault") / curve(one) - 1)
    assert off.max() > 1e-3  # planted: the same rows in every process


def test_two_processes_agree_with_one(tmp_path):
    agree(2, 2, tmp_path)


@pytest.mark.long
def test_four_processes_agree_with_one(tmp_path):
    agree(4, 2, tmp_path)


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
    values = processes.flags.FlagValues()
    distributed.define(values)
    values(["x", *(f"--{name}={value}" for name, value in given.items())])
    with pytest.raises(ConfigError, match="process_id"):
        distributed.start(values)


def test_launchers_are_recognised():
    assert not distributed.managed({})
    assert not distributed.managed({"SLURM_NTASKS": "1", "SLURM_PROCID": "0"})
    assert distributed.managed({"SLURM_NTASKS": "4", "SLURM_PROCID": "0"})
    assert not distributed.managed({"TPU_WORKER_HOSTNAMES": "localhost"})
    assert distributed.managed({"TPU_WORKER_HOSTNAMES": "a,b"})
