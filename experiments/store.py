"""A run's folder: finished pieces are on disk, and a restart repeats none of them."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments import distributed, settings
from models.errors import ConfigError


class Store:
    """`workdir/config.json`, and `workdir/<kind>/<key>.json` for each piece."""

    def __init__(self, workdir: str | Path):
        self.path = Path(workdir)
        self.path.mkdir(parents=True, exist_ok=True)

    def claim(self, config: Any, free: tuple[str, ...] = ()) -> None:
        """Write config.json, or check that an earlier run of this folder agrees."""
        new = settings.plain(config)
        file = self.path / "config.json"
        if file.exists():
            lines = settings.diff(_read(file), new, free)
            if lines:
                raise ConfigError(
                    f"{self.path} holds a run with another configuration:\n  "
                    + "\n  ".join(lines)
                    + "\nUse another --workdir, or the configuration it was begun with."
                )
        write(file, new)

    def has(self, kind: str, key: str) -> bool:
        return self._file(kind, key).exists()

    def get(self, kind: str, key: str) -> Any:
        return _read(self._file(kind, key))

    def make(self, kind: str, key: str, compute: Callable[[], Any]) -> Any:
        """The stored piece, computed and stored first where it is missing."""
        if not distributed.agreed(self.has(kind, key)):
            piece = compute()
            file = self._file(kind, key)
            distributed.written(lambda: write(file, piece), f"{kind}/{key}")
        return self.get(kind, key)

    def log(self, **fields: Any) -> None:
        """Append a line to metrics.jsonl."""
        if not distributed.leads():
            return
        line = json.dumps({"time": round(time.time(), 3), **fields})
        with open(self.path / "metrics.jsonl", "a") as file:
            file.write(line + "\n")

    def _file(self, kind: str, key: str) -> Path:
        return self.path / kind / f"{key}.json"


def write(file: Path, value: Any) -> None:
    """Write JSON so that a reader sees the old file or the new one, never a half."""
    text(file, json.dumps(value, indent=1, allow_nan=False) + "\n")


def text(file: Path, value: str) -> None:
    """Write a text file in the same way; process 0 alone."""
    if not distributed.leads():
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f".{file.name}.{os.getpid()}")
    part.write_text(value)
    os.replace(part, file)


def _read(file: Path) -> Any:
    try:
        return json.loads(file.read_text())
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{file} is no JSON ({error}): delete it to have it made again"
        ) from error
