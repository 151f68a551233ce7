"""What happens to runs that are killed, refilled, and fed nonsense: one report.

python -m tests.stress.report --workdir=runs/reliability --rounds=10 \\
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

from decoding import compose, recipes
from decoding.loops import engines
from decoding.serving import continuous_batching
from experiments import console, run_folder
from experiments.measurement import machine
from experiments.reporting import report
from models.errors import ConfigError, DecodaxError
from models.synthetic import toy
from tests.stress import kill_and_resume
from training import command_line

ROWS = 16
KILLS, TERMS = 5, 2  # signals of a round
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
FUZZ = ("overrides", "recipes", "methods", "sweeps", "jsonl", "checkpoints")
TESTS = pathlib.Path(__file__).parent / "fuzz"


def signals(given: argparse.Namespace, place: run_folder.RunFolder) -> list[list[str]]:
    """Rounds of `KILLS` and `TERMS` signals, the kinds of run taking turns."""
    lines = []
    for turn, kind in enumerate(kill_and_resume.KINDS):
        total = kill_and_resume.Tally()
        for number in range(turn, given.rounds, len(kill_and_resume.KINDS)):

            def compute(kind: str = kind, number: int = number) -> Any:
                folder = place.path / "runs" / str(number)
                shutil.rmtree(folder, ignore_errors=True)
                with console.bar(KILLS + TERMS, kind) as bar:
                    tally = kill_and_resume.kill(
                        kind, folder, KILLS, TERMS, seed=number, note=bar.doing
                    )
                if not tally.wrong:
                    shutil.rmtree(folder, ignore_errors=True)
                return dataclasses.asdict(tally)

            found = place.make("kills", f"{number}-{kind}", compute)
            for name, value in found.items():
                setattr(total, name, getattr(total, name) + value)
        t = total
        counts = (t.killed, t.preempted, t.inside, t.resumed, t.compared)
        lines.append([kind, *map(str, counts), "; ".join(t.wrong) or "none"])
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
    parts = compose.compose(recipes.method("plain"), lm, 0.8)
    keys, usage, resident = (
        engines.request_keys(0, count, 1),
        continuous_batching.Usage(),
        [],
    )
    tokens = 0
    texts = continuous_batching.decode_requests(
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


def refilled(given: argparse.Namespace, place: run_folder.RunFolder) -> list[list[str]]:
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


def fuzzed(given: argparse.Namespace, place: run_folder.RunFolder) -> list[list[str]]:
    """The long runs of tests/stress/fuzz, which note what they counted."""
    if not TESTS.exists():
        raise ConfigError(f"--fuzz needs a checkout with {TESTS}")
    lines = []
    for name in FUZZ:

        def compute(name: str = name) -> Any:
            file = (place.path / f"{name}.jsonl").absolute()
            file.unlink(missing_ok=True)
            command = [sys.executable, "-m", "pytest", "-q", "-m", "long", "-k", name]
            told = {**os.environ, "DECODAX_FUZZ_SUMMARY": str(file)}
            root = TESTS.parents[2]
            status = subprocess.run([*command, str(TESTS)], env=told, cwd=root)
            if status.returncode:
                raise ConfigError(
                    f"tests/stress/fuzz -k {name} ended with {status.returncode}: "
                    "see above"
                )
            return json.loads(file.read_text())

        f = place.make("fuzz", name, compute)
        counts = [str(f[k]) for k in ("cases", "refused", "accepted")]
        lines.append([f["what"], *counts, "none"])
    return lines


def write(given: argparse.Namespace, arguments: Sequence[str]) -> str:
    place = run_folder.RunFolder(given.workdir)
    own = [a for a in arguments if not a.startswith(("--workdir", "--out"))]
    told = " ".join(["python -m tests.stress.report --workdir=W", *own])
    parts = [
        "# Killed, refilled, fuzzed\n",
        f"{time.strftime('%Y-%m-%d')}. {machine.hardware()['processor']}, "
        f"{machine.hardware()['cores']} cores; versions: "
        + ", ".join(f"{n} {v}" for n, v in machine.versions().items()),
        f"\nCommand: `{told}`\n",
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
    if given.rounds:
        parts += [
            "## Signals at random times\n",
            "A training run and a set of prompts (tests/stress/small_runs.py) are sent "
            "signals at times uniform over their work, and started again. `compared` "
            "runs came to their end; `resumed` signals were in runs whose metrics, "
            "weights and texts are those of the uninterrupted run, byte for byte.\n",
            report.table(KILLED, signals(given, place)),
        ]
    if given.fuzz:
        parts += [
            "## Nonsense\n",
            "`pytest -m long tests/stress/fuzz`. Found would be: an error that is not "
            "the project's own, or an answer that differs from the sound input's.\n",
            report.table(FUZZED, fuzzed(given, place)),
        ]
    text = "\n".join(parts)
    run_folder.text(pathlib.Path(given.out or place.path / "reliability.md"), text)
    return text


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workdir", required=True)
    told = f"of {KILLS} SIGKILLs and {TERMS} SIGTERMs each"
    parser.add_argument("--rounds", type=int, default=10, help=told)
    parser.add_argument("--requests", type=int, default=2000, help="of the refill")
    parser.add_argument("--fuzz", action="store_true", help="and the long fuzzing")
    parser.add_argument("--out", default="", help="the report, Markdown")
    given = parser.parse_args(arguments)
    try:
        console.terminal().print(write(given, arguments), markup=False)
    except DecodaxError as error:
        command_line.complain(error)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
