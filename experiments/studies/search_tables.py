"""Rows and tables of searches that are compared on the same problems."""

import functools
import json
import math
import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from decoding import Method, Spec
from experiments import console
from experiments.measurement import bootstrap
from experiments.measurement.draft_call_cost import verdict
from experiments.run_folder import RunFolder
from models import storage
from models.errors import DataError
from models.text import row_files

Row = dict[str, Any]

NODES = (
    "nodes: tokens run through the model for a problem, those of dropped texts too. "
    "rounds: calls of the model for all problems of a seed, which come one after the "
    "other.",
)
CLAIMS = (
    "difference: with its 95 % bootstrap interval over problems, in pairs; every seed "
    "has other problems. holds: *yes* if the interval is above 0, *no* if below, else "
    "*even*.",
)


def block(every: Sequence[Any], place: int, count: int) -> list[Any]:
    """Take the problems of the seed at a place."""
    return list(every[place * count : (place + 1) * count])


def read(folder: str, file: str, make: Callable[[Any], Any]) -> list[Any]:
    """Return the problems of a file, in a random order that is always the same.

    Args:
        folder: `config.data`.
        file: in the folder.
        make: a row's JSON -> a problem, or None for a row that is left out.

    Raises:
        DataError: the file cannot be read, or a row has another layout.
    """
    path = storage.path(folder) / file
    found = []
    for where, line in row_files.lines(path):
        try:
            problem = make(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{where}: not a row of {file} ({error!r})") from error
        if problem is not None:
            found.append(problem)
    random.Random(0).shuffle(found)
    return found


def search(file: str, **arguments: Any) -> Method:
    """Make a method of a search."""
    return Method(search=Spec(f"search/{file}", **arguments))


def as_dear(rows: Sequence[Row], one: Sequence[Row]) -> int:
    """Return how many texts cost what a search does, rounded up."""
    return max(1, math.ceil(pooled(rows, "nodes").mean() / pooled(one, "nodes").mean()))


def measured(
    store: RunFolder,
    part: str,
    arms: Mapping[str, Callable[[int, int], Row]],
    seeds: Sequence[int],
) -> dict[str, list[Row]]:
    """Run every arm on every seed, each a piece of the run folder.

    Args:
        store: the run folder.
        part: the study's part, of which the pieces are named.
        arms: name -> (place of the seed, seed) -> its row, lists by problem.
        seeds: of the rows.
    """
    rows: dict[str, list[Row]] = {}
    with console.bar(len(arms) * len(seeds), part) as bar:
        for name, work in arms.items():
            for place, seed in enumerate(seeds):
                bar.doing(f"{name}, seed {seed}")
                key = re.sub("[^a-z0-9.]+", "-", f"{part} {name} {seed}".lower())
                row = store.make("rows", key, functools.partial(work, place, seed))
                rows.setdefault(name, []).append(row)
                bar.done(name)
    return rows


def pooled(rows: Sequence[Row], field: str) -> np.ndarray:
    """Return a field of all seeds' problems, float64[seeds * problems]."""
    return np.concatenate([np.asarray(row[field], float) for row in rows])


def by_seed(rows: Sequence[Row], field: str) -> str:
    """Write the seeds' means, in their order."""
    return " ".join(f"{np.mean(row[field]):.3f}" for row in rows)


def compared(claim: str, first: np.ndarray, second: np.ndarray) -> list[str]:
    """Make a line of a table of claims: that `first` is above `second`."""
    gap, ends = bootstrap.interval(lambda at: (first - second)[at].mean(), len(first))
    return [claim, spread(gap, ends), verdict(*ends)]


def spread(value: float, ends: Sequence[float], form: str = "+.3f") -> str:
    """Write a number with its interval."""
    low, high = (format(x, form) for x in ends)
    return f"{value:{form}} ({low} to {high})"


def table(
    title: str, heads: Sequence[str], lines: Sequence[Sequence[str]], *notes: str
) -> dict[str, Any]:
    """Make a table of a report."""
    return {
        "title": title,
        "heads": list(heads),
        "lines": [list(line) for line in lines],
        "notes": list(notes),
    }


def claims(title: str, lines: Sequence[Sequence[str]], *notes: str) -> dict[str, Any]:
    """Make a table of claims."""
    return table(title, ("claim", "difference", "holds"), lines, *CLAIMS, *notes)
