"""Store a run's finished pieces on disk, so that a restart repeats none of them."""

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from experiments import stage
from experiments.recipes import settings
from models.distributed import processes
from models.errors import CheckpointError, ConfigError


class RunFolder:
    """Hold `workdir/config.json`, and `workdir/<kind>/<key>.json` for each piece."""

    def __init__(self, workdir: str | Path):
        self.path = Path(workdir)
        with _writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        self._mended: set[str] = set()

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
        if not processes.agreed(self.has(kind, key)):
            piece = compute()
            file = self._file(kind, key)
            processes.written(lambda: write(file, piece), f"{kind}/{key}")
        return self.get(kind, key)

    def log(self, **fields: Any) -> None:
        """Append a line to metrics.jsonl."""
        self.append("metrics", time=round(time.time(), 3), **fields)

    def append(self, name: str, **fields: Any) -> None:
        """Append a line to <name>.jsonl; process 0 alone."""
        if not processes.leads():
            return
        path = self._log(name)
        with _writing(path), open(path, "a") as file:
            file.write(json.dumps(fields) + "\n")

    def lines(self, name: str) -> list[Any]:
        """Read the lines of <name>.jsonl; [] if there is no such file."""
        path = self._log(name)
        if not path.exists():
            return []
        try:
            return [json.loads(line) for line in path.read_text().splitlines()]
        except ValueError as error:
            raise ConfigError(f"{path}: {error}; delete it") from error

    def _log(self, name: str) -> Path:
        """Return the path of <name>.jsonl, cut after its last whole line.

        A kill may have left a line half written.
        """
        path = self.path / f"{name}.jsonl"
        if name not in self._mended and path.exists():
            data = path.read_bytes()
            with _writing(path):
                os.truncate(path, data.rfind(b"\n") + 1)
        self._mended.add(name)
        return path

    def _file(self, kind: str, key: str) -> Path:
        return self.path / kind / f"{key}.json"


def write(file: Path, value: Any) -> None:
    """Write JSON atomically: a reader sees the old file or the new one."""
    text(file, json.dumps(value, indent=1, allow_nan=False) + "\n")


def text(file: Path, value: str) -> None:
    """Write a text file atomically; process 0 alone."""
    if not processes.leads():
        return
    part = file.with_name(f".{file.name}.{os.getpid()}")
    with _writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            part.write_text(value)
            os.replace(part, file)
        except OSError:
            part.unlink(missing_ok=True)
            raise


@contextlib.contextmanager
def _writing(file: Path) -> Iterator[None]:
    """Turn an OSError into a CheckpointError that names the remedy."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"{file} cannot be written ({error}): finished pieces are kept; free space "
            "or choose another --workdir, and start again"
        ) from error


def _read(file: Path) -> Any:
    try:
        return json.loads(file.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"{file} is no JSON ({error}): delete it, and the run makes it again"
        ) from error
