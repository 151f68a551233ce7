"""The example packages of experiments/examples, as an installation would show them."""

import pathlib
import tomllib
from importlib import metadata

NAMES = ("own_sampler", "own_drafter")
ROOT = pathlib.Path(__file__).parents[2] / "experiments" / "examples"
FOLDERS = [ROOT / name for name in NAMES]


def entry_points(group: str) -> list[metadata.EntryPoint]:
    """Read the packages' entry points of `group` from their pyproject.toml."""
    points = []
    for folder in FOLDERS:
        project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        named = project["entry-points"].get(group, {})
        points += [metadata.EntryPoint(n, value, group) for n, value in named.items()]
    return points
