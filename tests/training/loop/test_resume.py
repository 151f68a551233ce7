"""Killed or preempted and started again, a run writes the uninterrupted run's curve."""

import os
import pathlib
import signal
import subprocess
import sys

import pytest

from tests.training.loop import killed_run
from training.loop import checkpoints, preemption

ROOT = pathlib.Path(__file__).parents[3]


def start(workdir: pathlib.Path, point: str, *flags: str) -> int:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    script = str(pathlib.Path(killed_run.__file__))
    command = [sys.executable, script, str(workdir), point, *flags]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode


def final(path: pathlib.Path) -> str:
    """The digest of the last step's checkpoint."""
    last = path / "checkpoints" / str(killed_run.STEPS)
    assert last.is_dir()
    found = checkpoints.read_extra(last)
    assert found["data"]["step"] == killed_run.STEPS
    return found["digest"]


def curve(workdir: pathlib.Path) -> str:
    return (workdir / "metrics.jsonl").read_text()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    workdir = tmp_path_factory.mktemp("whole")
    assert start(workdir, "none") == 0
    assert curve(workdir).count("\n") == killed_run.STEPS
    return workdir


@pytest.mark.parametrize(
    "points",
    [
        ("step:2", "save:9"),  # a start of Python each
        pytest.param(("step:2", "save:3", "step:8", "save:9"), marks=pytest.mark.long),
    ],
    ids=len,
)
def test_killed_anywhere(
    points: tuple[str, ...], whole: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """Before the first checkpoint, between two, and while one is being written."""
    for point in points:
        assert start(tmp_path, point) == -signal.SIGKILL, point
    assert curve(tmp_path) != curve(whole)
    assert start(tmp_path, "none") == 0
    assert curve(tmp_path) == curve(whole)
    assert final(tmp_path) == final(whole)


@pytest.mark.parametrize(
    ("sign", "error"),
    [
        (signal.SIGTERM, preemption.Preempted),
        (signal.SIGINT, KeyboardInterrupt),
    ],
)
def test_preempted(
    sign: int, error: type[BaseException], whole: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """Between two checkpoints: the step is finished and saved, nothing lost."""
    iterator = killed_run.Doomed(killed_run.stream())
    iterator.at, iterator.sign = 7, sign
    with pytest.raises(error, match=r"checkpoints/8") as caught:
        killed_run.run(str(tmp_path), iterator)
    assert getattr(caught.value, "code", 75) == preemption.REQUEUE
    assert curve(tmp_path).count("\n") == 8
    killed_run.run(str(tmp_path), killed_run.Doomed(killed_run.stream()))
    assert curve(tmp_path) == curve(whole) and final(tmp_path) == final(whole)


def test_fault_lost_data_state(whole: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Planted fault: weights are restored, the place in the data is not."""
    assert start(tmp_path, "step:8") == -signal.SIGKILL
    assert start(tmp_path, "none", "--forget") == 0
    assert curve(tmp_path).count("\n") == killed_run.STEPS
    assert curve(tmp_path) != curve(whole)
