"""Write a folder of generated problems: train/ and validation/, a text a row.

python -m training.data.generated_problems --task=countdown --out=DIRECTORY
[--train=300000] [--validation=2000] [--seed=0] [--exclude=FILE ...]

Tasks are the files of training/data/problems. A hash of a problem's key holds it out,
so no seed and no count mixes the splits. Problems of one key are the same to a solver:
Countdown's numbers in another order, programs of the same outputs. `--exclude` names
files of problems, such as a public test, that are left out of both splits.
"""

import argparse
import hashlib
import importlib
import json
import pkgutil
import random
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from models import storage
from models.errors import DataError, hint
from training import command_line, progress_lines
from training.data import problems
from training.data.file_groups import SPLITS

MODULE = "training.data.generated_problems"
HELD = 0.1  # share of the keys
IDLE = 10_000  # draws without a new problem


def is_held(key: str) -> bool:
    """Choose a key's split by its SHA-256: True for validation."""
    digest = hashlib.sha256(key.encode()).digest()
    return int.from_bytes(digest[:8], "big") < HELD * 2**64


def take(
    draw: Callable[[random.Random], Any],
    split: str,
    count: int,
    seed: int = 0,
    excluded: Collection[str] = (),
) -> Iterator[Any]:
    """Yield `count` problems of a split: no text twice, nor a key of validation.

    Args:
        draw: of a task.
        split: one of `SPLITS`.
        count: problems; the first ones do not depend on it.
        seed: of the draws.
        excluded: keys that belong to neither split.

    Raises:
        DataError: another split, or fewer different problems than `count`.
    """
    if split not in SPLITS:
        raise DataError(f"split={split!r}: use one of {SPLITS}")
    rng = random.Random(f"{seed} {split}")
    held, seen = split == "validation", set[str]()
    idle = 0
    while len(seen) < count:
        problem = draw(rng)
        name = problem.key if held else problem.prompt + problem.answer
        is_new = name not in seen and problem.key not in excluded
        if is_new and is_held(problem.key) == held:
            seen.add(name)
            idle = 0
            yield problem
        elif (idle := idle + 1) > IDLE:
            raise DataError(
                f"{len(seen)} different problems were found for {split}, not {count}: "
                "use a smaller count"
            )


def task(name: str) -> Any:
    """Import a task by its name; DataError for others."""
    names = sorted(module.name for module in pkgutil.iter_modules(problems.__path__))
    if name not in names:
        raise DataError(f"no task {name!r}{hint(name, names)}; there are {names}")
    return importlib.import_module(f"{problems.__name__}.{name}")


def write(
    name: str,
    folder: storage.Path,
    counts: Sequence[int],
    seed: int = 0,
    exclude: Sequence[str] = (),
) -> None:
    """Write `counts` problems of each of `SPLITS` to `folder`/<split>/<task>.jsonl."""
    chosen = task(name)
    excluded = {p.key for path in exclude for p in chosen.read_file(path)}
    for split, count in zip(SPLITS, counts, strict=True):
        drawn = take(chosen.draw, split, count, seed, excluded)
        rows = progress_lines.counted(drawn, f"drawing {name}, {split}", count)
        lines = [json.dumps({"text": p.prompt + p.answer}) for p in rows]
        (folder / split).mkdir(parents=True, exist_ok=True)
        storage.write(folder / split / f"{name}.jsonl", "\n".join(lines) + "\n")


def _body(arguments: list[str]) -> int:
    parser = command_line.Parser(MODULE, __doc__)
    parser.add_argument("--task", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--train", type=int, default=300_000)
    parser.add_argument("--validation", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--exclude", action="append", default=[])
    options: argparse.Namespace = parser.read(arguments)
    counts = (options.train, options.validation)
    out = storage.path(options.out)
    write(options.task, out, counts, options.seed, options.exclude)
    sys.stdout.write(f"{out}: {counts[0]} and {counts[1]} problems\n")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; 0, or 2 for a mistake."""
    return command_line.call(MODULE, _body, arguments)


if __name__ == "__main__":
    sys.exit(main())
