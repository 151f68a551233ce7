"""The points of a sweep: the product of its fields' values, each with a folder."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from experiments.recipes import settings
from models.errors import ConfigError


class Point(NamedTuple):
    """One run: its folder and its command's arguments."""

    name: str  # "" without a sweep
    workdir: str
    arguments: tuple[str, ...]

    @property
    def command(self) -> list[str]:
        return ["python", "-m", "experiments.run", *self.arguments]


def split(text: str) -> list[str]:
    """Split a text at the commas that are not inside brackets or quotes."""
    parts, depth, quote = [""], 0, ""
    for c in text:
        if quote or c in "\"'":
            quote = "" if c == quote else quote or c
        elif c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
        if c == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += c
    return parts


def points(
    config: str, workdir: str, overrides: Sequence[str], sweeps: Sequence[str]
) -> list[Point]:
    """Resolve the runs of a command line, each checked against the recipe."""
    axes = []
    for sweep in sweeps:
        name = sweep.removeprefix("--").removeprefix("config.")
        field, sep, text = name.partition("=")
        values = split(text)
        if not sep or not field or not all(values):
            raise ConfigError(f"--sweep {sweep}: write --sweep FIELD=VALUE,VALUE")
        if len(set(values)) < len(values):
            raise ConfigError(f"--sweep {sweep}: the same value twice; remove one")
        axes.append([(field, value) for value in values])
    names = [axis[0][0] for axis in axes]
    if len(set(names)) < len(names):
        raise ConfigError(
            f"--sweep: the same field twice in {names}; give its values in one --sweep"
        )
    runs = []
    for chosen in itertools.product(*axes):
        name = ",".join(f"{f}={v}" for f, v in chosen)
        safe = "".join(c if c.isalnum() or c in "=.,_-" else "_" for c in name)
        fields = [*overrides, *(f"--config.{f}={v}" for f, v in chosen)]
        settings.resolve([f"--config={config}", *fields])
        folder = f"{workdir.rstrip('/')}/{safe}" if safe else workdir
        arguments = (f"--config={config}", f"--workdir={folder}", *fields)
        runs.append(Point(safe, folder, arguments))
    folders = [p.workdir for p in runs]
    if len(set(folders)) < len(folders):
        raise ConfigError(
            f"--sweep: two points share a folder in {folders}; change their values"
        )
    return runs
