"""Runs that are killed at random times and started again, beside one that was not."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from models import storage
from models.errors import DecodaxError
from tests.stress import small_runs
from training.loop import checkpoints
from training.loop.preemption import REQUEUE

UNFINISHED = "orbax-checkpoint-tmp"  # in the name of a checkpoint that is being written
PATIENCE = 300.0  # seconds for one sitting


@dataclass
class Tally:
    """What became of a kind of run."""

    killed: int = 0  # by SIGKILL
    preempted: int = 0  # by SIGTERM, which it answered with status 75
    inside: int = 0  # of the killed, those that left a checkpoint half written
    compared: int = 0  # whole runs beside the uninterrupted one
    resumed: int = 0  # signals after which the run came to its end
    wrong: list[str] = field(default_factory=list)


def curve(folder: storage.Path) -> list[str]:
    """All that a training run says: its metrics, its last weights and averages."""
    final = folder / "checkpoints" / str(small_runs.STEPS)
    told = checkpoints.read_extra(final)
    text = (folder / "metrics.jsonl").read_text()
    return [text, told["digest"], json.dumps(told["data"])]


def texts(folder: storage.Path) -> list[str]:
    return [(folder / "texts.jsonl").read_text()]


KINDS: dict[str, Callable[[storage.Path], list[str]]] = {
    "train": curve,
    "prompts": texts,
}


def sitting(
    kind: str,
    folder: storage.Path,
    after: float,
    number: int,
    known: set[int] | None = None,
) -> tuple[int, float]:
    """Start the run; `after` seconds of work send it signal `number`.

    The signal waits for a half-written checkpoint that is not `known`; None: for none.

    Its status, and how long it worked.
    """
    root = str(pathlib.Path(__file__).parents[2])
    command = [sys.executable, "-m", "tests.stress.small_runs", kind, str(folder)]
    # A checkpoint takes seconds in a bucket.
    command += [] if isinstance(folder, pathlib.Path) else ["24"]
    told = {"PYTHONPATH": root, "JAX_PLATFORMS": "cpu"}
    with subprocess.Popen(
        command,
        env={**os.environ, **told},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as child:
        assert child.stdout
        for line in child.stdout:
            if line.strip() == small_runs.READY:
                break
        began = time.monotonic()
        if not _ended(child, after):
            while known is not None and unfinished(folder) <= known:
                if _ended(child, 1e-3):
                    break
            child.send_signal(number)
        return child.wait(PATIENCE), time.monotonic() - began


def _ended(child: subprocess.Popen, seconds: float) -> bool:
    """Tell whether the child ends within `seconds`."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(seconds)
    return child.returncode is not None


def unfinished(folder: storage.Path) -> set[int]:
    """Find the half-written checkpoints in `folder`, by inode: names may come again.

    In a bucket they have their final names, and none is found.
    """
    found: set[int] = set()
    if not isinstance(folder, pathlib.Path):
        return found
    for path in folder.glob(f"checkpoints/*{UNFINISHED}*"):
        with contextlib.suppress(FileNotFoundError):  # it was completed meanwhile
            found.add(path.stat().st_ino)
    return found


def kill(
    kind: str,
    folder: storage.Path,
    kills: int,
    terms: int,
    seed: int = 0,
    note: Callable[[str], Any] = lambda said: None,
) -> Tally:
    """Send a run `kills` SIGKILLs and `terms` SIGTERMs, in a random order.

    Each comes at a time uniform over the uninterrupted run; of a training's SIGKILLs
    every other one waits from then on for a checkpoint's writing, which takes a share
    of the time that differs from machine to machine. Whenever the run gets through it
    begins anew.
    """
    read, tally = KINDS[kind], Tally()
    whole = folder / "whole"
    whole.mkdir(parents=True, exist_ok=True)
    status, length = sitting(kind, whole, PATIENCE, signal.SIGKILL)
    if status:
        tally.wrong.append(f"the uninterrupted run ended with {status}")
        return tally
    wanted = read(whole)
    rng = np.random.default_rng(seed)
    signals = [signal.SIGKILL] * kills + [signal.SIGTERM] * terms
    left = [signals[i] for i in rng.permutation(len(signals))]
    run, sent = 0, 0
    while left or sent:
        own = folder / f"run{run}"
        number = left[0] if left else signal.SIGKILL
        after = rng.uniform(0, length) if left else PATIENCE
        aimed = kind == "train" and number == signal.SIGKILL and tally.killed % 2 == 0
        aimed = aimed and isinstance(own, pathlib.Path)
        known = unfinished(own)
        status, _ = sitting(kind, own, after, number, known if aimed and left else None)
        if status == -signal.SIGTERM and _through(read, own, wanted):
            status = 0  # all was done, and nobody watched for signals any more
        if status == 0:
            same = read(own) == wanted
            tally.compared += 1
            tally.resumed += sent if same else 0
            if not same:
                tally.wrong.append(f"{own} differs from {whole}")
            storage.remove(own) if same else None
            run, sent = run + 1, 0
        elif status == -signal.SIGKILL and number == signal.SIGKILL and left:
            tally.killed += 1
            tally.inside += not unfinished(own) <= known
            left, sent = left[1:], sent + 1
        elif status in (REQUEUE, -signal.SIGTERM) and number == signal.SIGTERM:
            tally.preempted += status == REQUEUE
            if status != REQUEUE:
                tally.wrong.append(f"{own}: SIGTERM ended it at once")
            left, sent = left[1:], sent + 1
        else:
            tally.wrong.append(f"{own} ended with {status}")
            return tally
        note(f"{kind}: {tally.killed} killed, {tally.preempted} preempted")
    return tally


def _through(
    read: Callable[[storage.Path], list[str]], own: storage.Path, wanted: list[str]
) -> bool:
    try:
        return read(own) == wanted
    except (OSError, DecodaxError):
        return False
