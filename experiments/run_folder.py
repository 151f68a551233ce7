"""Store a run's finished pieces on disk, so that a restart repeats none of them."""

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

from experiments import stage
from experiments.recipes import settings
from models import storage
from models.distributed import processes
from models.errors import CheckpointError, ConfigError


class RunFolder:
    """Hold `workdir/config.json`, and `workdir/<kind>/<key>.json` for each piece."""

    def __init__(self, workdir: str | os.PathLike):
        self.path = storage.path(workdir)
        with _writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        self._logs: dict[str, storage.Lines] = {}

    def claim(self, config: Any, free: tuple[str, ...] = ()) -> None:
        """Write config.json, or check it against that of an earlier run.

        `free` names fields that may differ. ConfigError lists all other differences.
        """
        new = settings.plain(config)
        file = self.path / "config.json"
        if file.exists():
            lines = settings.diff(stage.current(_read(file)), new, free)
            if lines:
                raise ConfigError(
                    f"{self.path} holds a run with another configuration:\n  "
                    + "\n  ".join(lines)
                    + "\nUse another --workdir, or the configuration of that run."
                )
        write(file, new)

    def has(self, kind: str, key: str) -> bool:
        """Test whether a piece is stored."""
        return self._file(kind, key).exists()

    def get(self, kind: str, key: str) -> Any:
        """Read a stored piece."""
        return _read(self._file(kind, key))

    def make(self, kind: str, key: str, compute: Callable[[], Any]) -> Any:
        """Return the stored piece; compute and store it first if it is missing."""
        if processes.agreed(self.has(kind, key)):
            return processes.told(lambda: self.get(kind, key))
        piece = compute()

        def store() -> Any:
            write(self._file(kind, key), piece)
            return json.loads(json.dumps(piece))  # as `get` returns it

        return processes.told(store)

    def log(self, **fields: Any) -> None:
        """Append a line to metrics.jsonl."""
        self.append("metrics", time=round(time.time(), 3), **fields)

    def append(self, name: str, **fields: Any) -> None:
        """Append a line to <name>.jsonl; process 0 alone."""
        if not processes.leads():
            return
        path = self.path / f"{name}.jsonl"
        with _writing(path):
            if name not in self._logs:
                self._logs[name] = storage.Lines(path)
            self._logs[name].write(json.dumps(fields))
            self._logs[name].flush()

    def lines(self, name: str) -> list[Any]:
        """Read the whole lines of <name>.jsonl; [] if there is no such file.

        A kill may have left a line half written.
        """
        path = self.path / f"{name}.jsonl"
        return processes.told(lambda: self._lines(name, path))

    def _lines(self, name: str, path: storage.Path) -> list[Any]:
        if name in self._logs:
            self._logs[name].sync()
        if not path.exists():
            return []
        text = path.read_text()
        try:
            whole = text[: text.rfind("\n") + 1]
            return [json.loads(line) for line in whole.splitlines()]
        except ValueError as error:
            raise ConfigError(f"{path}: {error}; delete it") from error

    def _file(self, kind: str, key: str) -> storage.Path:
        return self.path / kind / f"{key}.json"


def write(file: storage.Path, value: Any) -> None:
    """Write JSON atomically: a reader sees the old file or the new one."""
    text(file, json.dumps(value, indent=1, allow_nan=False) + "\n")


def text(file: storage.Path, value: str) -> None:
    """Write a text file atomically; process 0 alone."""
    if not processes.leads():
        return
    with _writing(file):
        storage.write(file, value)


@contextlib.contextmanager
def _writing(file: storage.Path) -> Iterator[None]:
    """Turn an OSError into a CheckpointError that names the remedy."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"{file} cannot be written ({error}): finished pieces are kept; free space "
            "or choose another --workdir, and start again"
        ) from error


def _read(file: storage.Path) -> Any:
    try:
        return json.loads(file.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"{file} is no JSON ({error}): delete it, and the run makes it again"
        ) from error
