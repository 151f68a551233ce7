"""Engines on the same schemas: refusals, verdicts by masks, and times."""

import functools
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments import console
from experiments.benchmarks.jsonschemabench import Problem
from experiments.run_folder import RunFolder
from experiments.studies import constraint_peers, constraint_verdicts
from experiments.studies.constraint_vocabularies import Trained
from experiments.studies.constraint_workers import Worker, forget_peak, memory
from models.compile_cache import OFF, VARIABLE
from models.errors import ConstraintError

Row = dict[str, Any]

SETUP_LIMIT = 600.0  # seconds in which an engine reads a vocabulary
TIMED = 200  # tokens of a schema whose masks and steps are timed


@functools.lru_cache(1)
def engine(name: str, file: str, eos: tuple[int, ...]) -> Any:
    """Return an engine over a vocabulary."""
    _, make = constraint_peers.PEERS[name]
    return make(constraint_peers.vocabulary(file, eos))


def prepare(name: str, file: str, eos: tuple[int, ...]) -> float:
    """Read a vocabulary; return the processor's seconds without those of its file."""
    constraint_peers.vocabulary(file, eos)
    constraint_peers.spelling(file)
    start = time.process_time()
    engine(name, file, eos)
    return time.process_time() - start


def walk(name: str, file: str, eos: tuple[int, ...], problem: Problem) -> Row:
    """Compile a schema and read its instances token by token, each by its mask.

    An instance is accepted if every token of its spelling by the tokenizer is read, and
    the text may end behind the last.

    Returns:
        name; refused; or seconds (of the processor), program (of a first mask and
        step, which compile on the device), mib, verdicts, µs of masks and commits;
        unmasked: for each instance, whether every token was in its mask.
    """
    made, tokenizer = engine(name, file, eos), constraint_peers.spelling(file)
    row: Row = {"name": problem.name}
    row["expected"] = constraint_verdicts.marks([x.is_valid for x in problem.instances])
    forget_peak()
    before, start = memory(), time.process_time()
    try:
        first = made.compile(problem.schema)
    except ConstraintError as error:
        row["seconds"] = time.process_time() - start
        return row | {"refused": str(error)[:300]}
    row["seconds"] = time.process_time() - start
    row["mib"] = max(0.0, memory("VmHWM") - before)
    start = time.process_time()
    trial = first.restarted()
    trial.commit(first_token(trial.mask()))
    trial.is_over()
    row["program"] = time.process_time() - start
    times: dict[str, list[float]] = {"masks": [], "commits": []}
    verdicts, unmasked = [], []
    for instance in problem.instances:
        ids = tokenizer.encode(instance.text).ids
        is_read, is_unmasked = reads(first.restarted(), ids, times)
        verdicts.append(is_read)
        unmasked.append(is_unmasked)
    row["verdicts"] = constraint_verdicts.marks(verdicts)
    row["unmasked"] = constraint_verdicts.marks(unmasked)
    return row | {name: [round(1e6 * x, 2) for x in xs] for name, xs in times.items()}


def first_token(words: np.ndarray) -> int:
    """Return the least token of a mask uint32[W]; 0 for an empty one."""
    bits = np.unpackbits(words.view(np.uint8), bitorder="little")
    return int(bits.argmax())


def reads(
    session: Any, ids: Sequence[int], times: dict[str, list[float]]
) -> tuple[bool, bool]:
    """Return whether a text is read whole, and whether masks had its tokens.

    A mask may lack a token that the engine reads. Times of masks and of steps are added
    to `times`.
    """
    is_unmasked = True
    for token in ids:
        start = time.process_time()
        words = session.mask()
        middle = time.process_time()
        is_unmasked &= constraint_peers.has(words, token)
        after = time.process_time()
        is_read = session.commit(token)
        end = time.process_time()
        if len(times["masks"]) < TIMED:
            times["masks"].append(middle - start)
            times["commits"].append(end - after)
        if not is_read:
            return False, is_unmasked
    return session.is_over(), is_unmasked


def measured(
    config: Any, store: RunFolder, trained: Trained, problems: Sequence[Problem]
) -> dict[str, Row]:
    """Run every engine on all problems, in chunks that are pieces of the run folder.

    Returns:
        engine -> version (None: not installed), setup (seconds), rows.
    """
    results: dict[str, Row] = {}
    size = config.cost_chunk
    with console.bar(len(config.peers), "peers") as bar:
        for name in config.peers:
            bar.doing(name)
            package, _ = constraint_peers.PEERS[name]
            if not constraint_peers.is_installed(package):
                results[name] = {"version": None, "setup": None, "rows": []}
                bar.done(f"{name}: not installed")
                continue
            about = name, trained.file, trained.eos
            environment = {"JAX_PLATFORMS": "cpu", VARIABLE: OFF[0]}
            slug = name.replace(", ", "-")
            with Worker(environment, one_core=True) as worker:
                key = f"{trained.size}-{slug}"
                start = functools.partial(started, worker, package, about)
                begin = store.make("peers", key, start)
                rows = []
                for i in range(0, len(problems), size):
                    chunk = problems[i : i + size]
                    make = functools.partial(chunked, worker, config, about, chunk)
                    key = f"{trained.size}-{slug}-{i}-{len(chunk)}"
                    rows += store.make("peers", key, make)
            results[name] = {**begin, "rows": rows}
            bar.done(name)
    return results


def started(worker: Worker, package: str, about: tuple) -> Row:
    """Prepare an engine in a worker; return its version and seconds (None: stopped)."""
    outcome = worker.call(SETUP_LIMIT, prepare, *about)
    return {"version": constraint_peers.version(package), "setup": outcome.value}


def chunked(
    worker: Worker, config: Any, about: tuple, problems: Sequence[Problem]
) -> list[Row]:
    """Walk problems in a worker, which is prepared again after it was stopped."""
    rows = []
    for problem in problems:
        if not worker.is_running:
            worker.call(SETUP_LIMIT, prepare, *about)
        outcome = worker.call(config.peer_limit, walk, *about, problem)
        stopped = {"name": problem.name, "stopped": outcome.problem}
        rows.append(stopped if outcome.problem else outcome.value)
    return rows
