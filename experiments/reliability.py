"""What happens to runs that are killed, refilled, and fed nonsense: one report.

python -m experiments.reliability --workdir=runs/reliability --kills=50 --terms=20 \\
    --requests=2000 --fuzz --out=experiments/reports/reliability.md

Every part that is done is kept in the workdir; the same command again goes on.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time
import types
from collections.abc import Sequence
from typing import Any

import numpy as np

from decoding import compose, decoder, refill
from experiments import console, kills, machine, report, store
from models import toy
from models.errors import ConfigError, DecodaxError

ROWS = 16
KILLED = (
    "run",
    "SIGKILL",
    "SIGTERM",
    "in a checkpoint",
    "resumed",
    "compared",
    "wrong",
)
REFILLED = ("rows are", "requests", "rounds", "occupancy", "tokens/s", "resident MiB")
FUZZED = ("what is random", "cases", "refused", "accepted", "found")
TESTS = pathlib.Path(__file__).parents[1] / "tests" / "fuzz"


def signals(given: argparse.Namespace, place: store.Store) -> list[list[str]]:
    """Half of the signals for each kind of run, the odd one for training."""
    lines = []
    for kind, more in (("train", 1), ("prompts", 0)):
        sizes = ((given.kills + more) // 2, (given.terms + more) // 2)

        def compute(kind: str = kind, sizes: tuple[int, int] = sizes) -> Any:
            folder = place.path / kind
            shutil.rmtree(folder, ignore_errors=True)
            with console.bar(sum(sizes), kind) as bar:
                tally = kills.kill(kind, folder, *sizes, note=bar.doing)
            return dataclasses.asdict(tally)

        key = f"{kind}-{sizes[0]}-{sizes[1]}"
        t = place.make("kills", key, compute)
        counts = [t["killed"], t["preempted"], t["inside"], t["resumed"], t["compared"]]
        lines.append([kind, *map(str, counts), "; ".join(t["wrong"]) or "none"])
    return lines


def ragged(count: int, free: int) -> dict[str, Any]:
    """`count` requests of log-normal lengths through the toy model's rows."""
    model, params = toy.model(8, order=2)
    lm = types.SimpleNamespace(
        model=model, params=params, tokenizer=None, config=model.config
    )
    rng = np.random.default_rng(1)
    lengths = np.clip(rng.lognormal(3, 1, count), 1, 200).astype(int)
    prompts = [rng.integers(0, 8, n).tolist() for n in rng.integers(1, 12, count)]
    limits = [len(p) + int(n) for p, n in zip(prompts, lengths)]
    parts = compose.compose(compose.recipe("plain"), lm, 0.8)
    keys, usage, resident = decoder.request_keys(0, count, 1), refill.Usage(), []
    tokens = 0
    texts = refill.decode(
        parts, {"target": params}, prompts, limits, keys, ROWS, free=free, usage=usage
    )
    for i, text in enumerate(texts):
        tokens += len(text.tokens)
        if i in (count // 10, count - 1):
            resident.append(_resident())
    return {
        "rounds": usage.rounds,
        "occupancy": usage.occupancy,
        "rate": tokens / usage.seconds,
        "resident": resident,
    }


def _resident() -> float:
    """MiB of memory of this process."""
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def refilled(given: argparse.Namespace, place: store.Store) -> list[list[str]]:
    lines = []
    for name, free in (("refilled", 1), ("batch by batch", ROWS)):
        key = f"{name.replace(' ', '-')}-{given.requests}"

        def compute(free: int = free) -> Any:
            ragged(2 * ROWS, free)  # compiles
            return ragged(given.requests, free)

        found = place.make("refill", key, compute)
        before, after = found["resident"]
        lines.append(
            [
                name,
                f"{given.requests}",
                f"{found['rounds']}",
                f"{100 * found['occupancy']:.1f} %",
                f"{found['rate']:.0f}",
                f"{before:.0f} → {after:.0f}",
            ]
        )
    return lines


def fuzzed(given: argparse.Namespace, place: store.Store) -> list[list[str]]:
    """The long run of tests/fuzz, which notes what it counted."""

    def compute() -> Any:
        if not TESTS.exists():
            raise ConfigError(f"--fuzz needs a checkout with {TESTS}")
        file = place.path / "fuzz.jsonl"
        file.unlink(missing_ok=True)
        command = [sys.executable, "-m", "pytest", "-q", "-m", "long", str(TESTS)]
        told = {**os.environ, "DECODAX_FUZZ_SUMMARY": str(file.absolute())}
        done = subprocess.run(command, env=told, cwd=TESTS.parents[1])
        if done.returncode:
            raise ConfigError(f"{TESTS.name} ended with {done.returncode}: see above")
        return [json.loads(line) for line in file.read_text().splitlines()]

    found = place.make("fuzz", "long", compute)
    return [
        [f["what"], *(str(f[k]) for k in ("cases", "refused", "accepted")), "none"]
        for f in found
    ]


def write(given: argparse.Namespace, arguments: Sequence[str]) -> str:
    place = store.Store(given.workdir)
    parts = [
        "# Killed, refilled, fuzzed\n",
        f"{time.strftime('%Y-%m-%d')}. {machine.hardware()['processor']}, "
        f"{machine.hardware()['cores']} cores; versions: "
        + ", ".join(f"{n} {v}" for n, v in machine.versions().items()),
        f"\nCommand: `python -m experiments.reliability {' '.join(arguments)}`\n",
    ]
    if given.kills or given.terms:
        parts += [
            "## Signals at random times\n",
            "A training run and a set of prompts (`experiments/trial.py`) are sent "
            "signals at times uniform over their work, and started again. `compared` "
            "runs came to their end; `resumed` signals were in runs whose metrics, "
            "weights and texts are those of the uninterrupted run, byte for byte.\n",
            report.table(KILLED, signals(given, place)),
        ]
    if given.requests:
        parts += [
            "## Refilled rows\n",
            f"Requests of log-normal lengths (σ = 1, at most 200 tokens) in {ROWS} "
            "rows of the exact toy model; memory of the process after a tenth of them "
            "and at the end. The toy model's call costs next to nothing, so that "
            "tokens/s are those of loop and host; for the shipped model see "
            "`configs/prompt_set.py`.\n",
            report.table(REFILLED, refilled(given, place)),
        ]
    if given.fuzz:
        parts += [
            "## Nonsense\n",
            "`pytest -m long tests/fuzz`. Found would be: an error that is not "
            "the project's own, or an answer that differs from the sound input's.\n",
            report.table(FUZZED, fuzzed(given, place)),
        ]
    text = "\n".join(parts)
    store.text(pathlib.Path(given.out or place.path / "reliability.md"), text)
    return text


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workdir", required=True)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--terms", type=int, default=20)
    parser.add_argument("--requests", type=int, default=2000, help="of the refill")
    parser.add_argument("--fuzz", action="store_true", help="and the long fuzzing")
    parser.add_argument("--out", default="", help="the report, Markdown")
    given = parser.parse_args(arguments)
    try:
        console.terminal().print(write(given, arguments), markup=False)
    except DecodaxError as error:
        console.complain(error)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
