"""Metrics of a training run: JSON lines, TensorBoard events, progress."""

import json
import pathlib
import statistics
import sys
import tempfile
import time
from types import TracebackType
from typing import Any

import jax
import numpy as np
import tensorboardX
from absl import logging
from rich import progress

from models import storage
from models.errors import CheckpointError
from training import progress_lines
from training.loop import throughput

FILES = ("metrics", "evaluations", "throughput")
LABEL = "loss.txt"  # the file with the label of the loss
LOSS = "loss"


def truncate(path: storage.Path, step: int) -> None:
    """Drop the rows of a metrics file that are past `step`, and a torn last line."""
    if not path.exists():
        return
    retained = []
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            break
        if not line.endswith("\n"):
            break
        if row["step"] <= step:
            retained.append(line)
    storage.write(path, "".join(retained))


def rows(workdir: storage.Path, name: str) -> list[dict[str, float]]:
    """Read a run's rows so far from one of its `FILES`."""
    path = workdir / f"{name}.jsonl"
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def figures(workdir: storage.Path, points: int = 200) -> dict[str, Any]:
    """Summarise a finished training: evaluations, loss curve of `points`, throughput.

    `pace` has the medians of the throughput's rows, None where there is no row: a
    training of one step. `label` names the loss.
    """
    label = workdir / LABEL
    losses = [(row["step"], row["loss"]) for row in rows(workdir, "metrics")]
    parts = np.array_split(np.asarray(losses), min(points, len(losses)))
    paces = rows(workdir, "throughput")
    return {
        "label": label.read_text(encoding="utf-8") if label.exists() else LOSS,
        "curve": rows(workdir, "evaluations"),
        "losses": [part.mean(0).tolist() for part in parts],
        "throughput": paces,
        "pace": {
            name: statistics.median(row[name] for row in paces) if paces else None
            for name in throughput.FIGURES
        },
    }


class Writer:
    """Write a run's metrics on process 0 only; use as a context manager.

    `metrics.jsonl` holds one line a step and no times, so that two runs can be compared
    byte for byte. Evaluations go to `evaluations.jsonl`. `throughput.jsonl` gets the
    pace of the steps since its last line, without compilation, evaluations and
    checkpoints.
    """

    def __init__(
        self,
        workdir: storage.Path,
        step: int,
        steps: int,
        bar: bool = True,
        label: str = LOSS,
    ) -> None:
        self.active = jax.process_index() == 0
        self.bar: progress.Progress | None = None
        self.lines = progress_lines.Lines(self._line, bar and self.active)
        self.clock, self.steps, self.label = progress_lines.Clock(step), steps, label
        self.row: tuple[int, dict[str, float]] = (step, {})
        if not self.active:
            return
        try:
            workdir.mkdir(parents=True, exist_ok=True)
            for name in FILES:
                truncate(workdir / f"{name}.jsonl", step)
            self.metrics, self.evaluations, self.throughput = (
                storage.Lines(workdir / f"{name}.jsonl") for name in FILES
            )
            storage.write(workdir / LABEL, label)
            self.events = _Events(workdir / "tensorboard")
            self.board = tensorboardX.SummaryWriter(str(self.events.folder))
        except OSError as error:
            raise CheckpointError(f"{workdir}: cannot be written ({error})") from error
        self.workdir = workdir
        self.work: throughput.Work | None = None  # of a step; without it no clock
        self.resume(step)
        if bar and sys.stdout.isatty():
            self.bar = progress.Progress(
                progress.TextColumn("training"),
                progress.BarColumn(),
                progress.MofNCompleteColumn(),
                progress.TextColumn(f"{label} {{task.fields[loss]:.4f}}", markup=False),
                progress.TimeRemainingColumn(),
            )
            self.task = self.bar.add_task("fit", total=steps, completed=step, loss=0.0)

    def __enter__(self) -> "Writer":
        if self.bar:
            self.bar.start()
        self.lines.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.lines.__exit__(kind, error, trace)
        if not self.active:
            return
        if self.bar:
            self.bar.stop()
        try:
            self.metrics.close()
            self.evaluations.close()
            self.throughput.close()
            self.board.close()
            self.events.upload()
        except OSError as failure:
            message = f"{self.workdir}: metrics cannot be written ({failure})"
            if kind is None:
                raise CheckpointError(message) from failure
            logging.warning("%s", message)

    def add(self, step: int, row: dict[str, float]) -> None:
        """Buffer one step's metrics; `flush` puts them on disk."""
        if not self.active:
            return
        self._write(self.metrics, {"step": step, **row})
        for name, value in row.items():
            self.board.add_scalar(f"train/{name}", value, step)
        if self.bar:
            self.bar.update(self.task, completed=step, loss=row["loss"])
        self.row = (step, row)
        self.clock.reach(step)

    def _line(self) -> str:
        """Describe the training so far, for output that is no terminal."""
        step, row = self.row
        parts = [f"training: step {step} of {self.steps}"]
        if self.work is not None:
            parts.append(f"{step * self.work.tokens:,} tokens")
        if LOSS in row:
            parts.append(f"{self.label} {row[LOSS]:.4f}")
        return ", ".join([*parts, self.clock.text(self.steps)])

    def flush(self, kept: bool = True) -> None:
        """Write the rows; where they are to be `kept`, they outlive the machine.

        A checkpoint must never be ahead of its metrics.
        """
        if not self.active:
            return
        try:
            if kept:
                self.metrics.sync()
                self.board.flush()
                self.events.upload()
            else:
                self.metrics.flush()
        except OSError as error:
            raise CheckpointError(
                f"{self.workdir}: metrics cannot be written ({error})"
            ) from error
        step, row = self.row
        if self.work is None or step == self.last[0]:
            return
        seconds = (time.monotonic() - self.last[1]) / (step - self.last[0])
        pace = self.work.row(seconds)
        self._write(self.throughput, {"step": step, **pace}, flush=True)
        for name, value in pace.items():
            self.board.add_scalar(f"train/{name}", value, step)
        logging.info(
            "step %d: %s %.4f, %.2f s a step, %.0f tokens/s, MFU %.2f",
            *(step, self.label, row[LOSS], seconds),
            *(pace["tokens_per_s"], pace["mfu"]),
        )
        self.resume(step)

    def resume(self, step: int) -> None:
        """Restart the clock of the throughput at `step` finished steps."""
        self.last = (step, time.monotonic())

    def add_evaluation(self, step: int, row: dict[str, float]) -> None:
        """Write one evaluation's figures to disk."""
        if not self.active:
            return
        self._write(self.evaluations, {"step": step, **row}, flush=True)
        for name, value in row.items():
            self.board.add_scalar(f"evaluation/{name}", value, step)
        logging.info("step %d: %s", step, row)

    def _write(self, file: Any, row: dict[str, Any], flush: bool = False) -> None:
        try:
            file.write(json.dumps(row))
            if flush:
                file.flush()
        except OSError as error:
            raise CheckpointError(
                f"{self.workdir}: metrics cannot be written ({error})"
            ) from error


class _Events:
    """TensorBoard's events: its writer has files on a disk, which a bucket gets."""

    def __init__(self, place: storage.Path):
        self.place = place
        self._kept: tempfile.TemporaryDirectory | None = None
        if isinstance(place, pathlib.Path):
            self.folder = place
        else:
            self._kept = tempfile.TemporaryDirectory(prefix="decodax-events-")
            self.folder = pathlib.Path(self._kept.name)

    def upload(self) -> None:
        """Copy this sitting's events to the bucket, over its earlier copy."""
        if self._kept is not None:
            for file in self.folder.iterdir():
                storage.upload(file, self.place / file.name)
