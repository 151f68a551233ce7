"""Byte machines of all schemas: refusals, sizes, times, verdicts on instances."""

import functools
import queue
import re
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from decoding.automata import byte_machine, compiled, json_schema
from experiments import console
from experiments.benchmarks.jsonschemabench import Problem
from experiments.run_folder import RunFolder
from experiments.studies import constraint_peers
from experiments.studies.constraint_workers import Outcome, Worker, forget_peak, memory
from models.errors import ConstraintError

Row = dict[str, Any]

ACCEPTED, REFUSED, UNKNOWN = "1", "0", "-"


def marks(verdicts: Sequence[bool | None]) -> str:
    """Write verdicts as a character each."""
    known = {True: ACCEPTED, False: REFUSED, None: UNKNOWN}
    return "".join(known[verdict] for verdict in verdicts)


def judge(problem: Problem) -> Row:
    """Compile a schema to a byte machine and read its instances, llguidance beside it.

    Returns:
        name, subset, features; seconds (of the processor), mib (the peak above what
        the process held before), states and need (calling states), or refused;
        verdicts as characters: expected, ours, theirs; their_seconds, their_refusal.
    """
    texts = [instance.text.encode() for instance in problem.instances]
    row: Row = {"name": problem.name, "subset": problem.subset}
    row["features"] = list(problem.features)
    row["expected"] = marks([x.is_valid for x in problem.instances])
    forget_peak()
    before, start = memory(), time.process_time()
    try:
        machine = compiled.machine(compiled.Grammar("json_schema", problem.schema))
    except ConstraintError as error:
        row["refused"] = str(error)
        row["ours"] = UNKNOWN * len(texts)
    else:
        row["states"] = len(machine.ends)
        row["need"] = int(machine.need[machine.start])
    row["seconds"] = time.process_time() - start
    row["mib"] = max(0.0, memory("VmHWM") - before)
    if "refused" not in row:
        row["ours"] = marks([byte_machine.accepts(machine, text) for text in texts])
    return row | theirs(problem.schema, texts)


def theirs(schema: str, texts: Sequence[bytes]) -> Row:
    """Return llguidance's verdicts on bytes; unknown ones where it is missing."""
    unknown = UNKNOWN * len(texts)
    if not constraint_peers.is_installed("llguidance"):
        return {"theirs": unknown, "their_refusal": "not installed"}
    start = time.process_time()
    try:
        reader = byte_reader()
        session = reader.compile(schema)
    except ConstraintError as error:
        return {"theirs": unknown, "their_refusal": str(error)}
    seconds = time.process_time() - start
    verdicts = marks([session.restarted().reads(reader.ids(text)) for text in texts])
    return {"theirs": verdicts, "their_seconds": seconds}


@functools.cache
def byte_reader() -> constraint_peers.LLGuidance:
    """Return llguidance over single bytes, so that no spelling matters."""
    return constraint_peers.LLGuidance(constraint_peers.BYTES)


def measured(config: Any, store: RunFolder, problems: Sequence[Problem]) -> list[Row]:
    """Judge all problems, in chunks that are pieces of the run folder."""
    size = config.chunk
    chunks = [problems[i : i + size] for i in range(0, len(problems), size)]
    keys = [f"{i}-{len(chunk)}" for i, chunk in enumerate(chunks)]
    missing = [i for i, key in enumerate(keys) if not store.has("verdicts", key)]
    workers: queue.Queue[Worker] = queue.Queue()
    for _ in range(config.processes):
        workers.put(Worker({"JAX_PLATFORMS": "cpu"}))

    def work(index: int) -> list[Row]:
        worker = workers.get()
        try:
            return [judged(worker, config.limit, x) for x in chunks[index]]
        finally:
            workers.put(worker)

    with (
        console.bar(len(missing), "verdicts") as bar,
        ThreadPoolExecutor(config.processes) as pool,
    ):
        try:
            for index, rows in zip(missing, pool.map(work, missing)):
                store.make("verdicts", keys[index], functools.partial(list, rows))
                bar.done(f"{len(chunks[index])} schemas")
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            while not workers.empty():
                workers.get().close()
    return [row for key in keys for row in store.get("verdicts", key)]


def judged(worker: Worker, limit: float, problem: Problem) -> Row:
    """Judge a problem in a worker; one that is stopped has the row `stopped`."""
    outcome: Outcome = worker.call(limit, judge, problem)
    if not outcome.problem:
        return outcome.value
    count = len(problem.instances)
    return {
        "name": problem.name,
        "subset": problem.subset,
        "features": list(problem.features),
        "stopped": outcome.problem,
        "seconds": limit,
        "mib": 0.0,
        "expected": marks([x.is_valid for x in problem.instances]),
        "ours": UNKNOWN * count,
        "theirs": UNKNOWN * count,
        "their_refusal": "stopped with ours",
    }


PLACE = re.compile(r"the JSON schema at .*?: (?=\S)")
LIMITS = (
    ("accepts no text", "accepts no text"),
    ("more than", f"size ({json_schema.MOST_STATES:,} states, or digits)"),
    ("labels", "labels of a value"),
    ("nested too deep", "nested too deep"),
)


def reason(refusal: str) -> str:
    """Return the keyword of a refusal, with its problem in short.

    "the JSON schema at /a: 'contains' is not supported; …" gives
    "contains: is not supported".
    """
    parts = PLACE.split(refusal, maxsplit=1)
    text = parts[-1]
    for words, name in LIMITS:
        if words in text:
            return name
    quoted = re.match(r"'([^']*)' (.*)", text)
    keyword, problem = quoted.groups() if quoted else ("", text)
    problem = re.split(r"[;:(]", problem)[0]
    problem = re.sub(r"'[^']*'|\"[^\"]*\"", "…", problem)
    problem = re.sub(r"\d+", "N", problem).strip()[:60]
    return f"{keyword}: {problem}" if keyword else problem
