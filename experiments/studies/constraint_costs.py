"""What grammars cost over a vocabulary: set-up, compiling, memory, masks and steps.

All of it runs in one worker process whose threads share a core. Seconds are those of
the processor, since other work may run beside it. Masks are timed inside a program that
makes many of them, as decoding does, so that no call of a program is in them.
"""

import functools
import os
import pathlib
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from decoding.automata import arena, byte_machine, compiled, grammar_files, machine
from experiments import console
from experiments.benchmarks.jsonschemabench import Problem
from experiments.run_folder import RunFolder
from experiments.studies import constraint_peers
from experiments.studies.constraint_peers import DEPTH, MOST_TOKENS
from experiments.studies.constraint_vocabularies import Trained
from experiments.studies.constraint_workers import Worker
from models.compile_cache import OFF, VARIABLE
from models.errors import ConstraintError

Row = dict[str, Any]

NODES, BATCHES = 8, 8  # of one mask program: nodes at once, one batch after the other
TEXT = 256  # tokens of an instance along which nodes are taken
LONG_LIMIT = 600.0  # seconds for a set-up
FIRST, SECOND = "true", '{"type": "boolean"}'  # schemas that cost next to nothing


def setup(file: str, eos: tuple[int, ...]) -> Row:
    """Time a vocabulary's set-up, from nothing and with the strings on the disk.

    Returns:
        scratch, disk: seconds from the tokens' bytes to the first schema's tables.
    """
    tokens = list(constraint_peers.vocabulary(file, eos).tokens)
    row = {}
    with tempfile.TemporaryDirectory() as folder:
        os.environ[VARIABLE] = folder
        for name, schema in (("scratch", FIRST), ("disk", SECOND)):
            start = time.process_time()
            compiler = compiled.Compiler(tokens, eos, len(tokens))
            compiler.lifted(compiled.Grammar("json_schema", schema))
            row[name] = time.process_time() - start
        os.environ[VARIABLE] = OFF[0]
    return row


@functools.lru_cache(1)
def ready(file: str, eos: tuple[int, ...]) -> compiled.Compiler:
    """Return a compiler that has made what all schemas share."""
    os.environ[VARIABLE] = OFF[0]
    tokens = list(constraint_peers.vocabulary(file, eos).tokens)
    compiler = compiled.Compiler(tokens, eos, len(tokens))
    compiler.lifted(compiled.Grammar("json_schema", FIRST))
    return compiler


def warm_up(file: str, eos: tuple[int, ...]) -> None:
    """Prepare the compiler of `measure`."""
    ready(file, eos)


@functools.lru_cache(1)
def llguidance(file: str, eos: tuple[int, ...]) -> Any:
    """Return llguidance over the vocabulary; None where it is missing."""
    if not constraint_peers.is_installed("llguidance"):
        return None
    return constraint_peers.LLGuidance(constraint_peers.vocabulary(file, eos))


def num_bytes(tree: Any) -> int:
    """Return the bytes of all arrays."""
    return sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(tree))


def measure(
    file: str, eos: tuple[int, ...], problem: Problem, is_timed: bool, repeats: int
) -> Row:
    """Compile and lift a schema; time its masks where it `is_timed`.

    Returns:
        name; refused, or seconds of the byte machine (`machine`), of compiling with the
        lift (`cold`), of reading it from the disk (`warm`), of `tables`; states, bytes
        on the device, on the disk; of times in µs: mask, mask_host, advance; theirs.
    """
    compiler = ready(file, eos)
    grammar = compiled.Grammar("json_schema", problem.schema)
    row: Row = {"name": problem.name} | theirs(file, eos, problem, repeats)
    start = time.process_time()
    try:
        lifted = compiler.lifted(grammar)
    except ConstraintError as error:
        return row | {"refused": str(error), "cold": time.process_time() - start}
    row["cold"] = time.process_time() - start
    start = time.process_time()
    built = compiled.machine(grammar)
    row["machine"] = time.process_time() - start
    with tempfile.TemporaryDirectory() as folder:
        kept = pathlib.Path(folder) / "grammar.npz"
        grammar_files.write(kept, lifted)
        row["disk_bytes"] = kept.stat().st_size
        start = time.process_time()
        grammar_files.read(kept, grammar_files.LIFTED)
        row["warm"] = time.process_time() - start
    held = arena.Arena(compiler.vocabulary, compiler.strings)
    first = held.add(lifted)
    start = time.process_time()
    tables = held.tables()
    row["tables"] = time.process_time() - start
    row["states"] = len(built.ends)
    row["device_bytes"] = num_bytes(tables)
    row["need"] = int(built.need[built.start])
    if is_timed and row["need"] <= DEPTH:
        text = accepted_text(built, problem)
        ids = constraint_peers.spelling(file).encode(text).ids[:TEXT]
        row |= timed(tables, first, ids or list(eos), repeats)
    return row


def accepted_text(built: byte_machine.ByteMachine, problem: Problem) -> str:
    """Return the longest valid instance that the machine accepts; "" if none is."""
    valid = (x.text for x in problem.instances if x.is_valid)
    good = [x for x in valid if byte_machine.accepts(built, x.encode())]
    return max(good, key=len, default="")


def theirs(file: str, eos: tuple[int, ...], problem: Problem, repeats: int) -> Row:
    """Return llguidance's times on a schema, and µs of its masks along an instance."""
    engine = llguidance(file, eos)
    if engine is None:
        return {}
    start = time.process_time()
    try:
        session = engine.compile(problem.schema)
    except ConstraintError as error:
        return {"their_refusal": str(error)}
    row: Row = {"their_cold": time.process_time() - start}
    valid = [x.text for x in problem.instances if x.is_valid]
    ids = constraint_peers.spelling(file).encode(max(valid, key=len, default="")).ids
    masks, commits = [], []
    for token in ids[:TEXT]:
        masks.append(median(session.mask, repeats))
        start = time.process_time()
        if not session.commit(token):
            break
        commits.append(time.process_time() - start)
    if masks:
        row["their_mask"] = 1e6 * float(np.mean(masks))
    if commits:
        row["their_commit"] = 1e6 * float(np.mean(commits))
    return row


def median(call: Callable[[], Any], repeats: int) -> float:
    """Return the median of the processor's seconds of a call."""
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        call()
        seconds.append(time.process_time() - start)
    return float(np.median(seconds))


@jax.jit
def walked(tables: machine.Tables, row: machine.Row, tokens: jax.Array) -> machine.Row:
    """Return the rows before each of `tokens` int32[T], leaves [T, …]."""

    def step(at: machine.Row, token: jax.Array) -> tuple[machine.Row, machine.Row]:
        return machine.advance(tables, at, token), at

    return lax.scan(step, row, tokens)[1]


@jax.jit
def masks(tables: machine.Tables, rows: machine.Row) -> jax.Array:
    """Make the masks of `rows`, leaves [R, N, …]; return their parity bool[N, V]."""
    each = jax.vmap(machine.allowed, (None, 0))

    def step(parity: jax.Array, batch: machine.Row) -> tuple[jax.Array, None]:
        return parity ^ each(tables, batch), None

    shape = rows.state.shape[1], tables.width.shape[1]
    return lax.scan(step, jnp.zeros(shape, bool), rows)[0]


@functools.partial(jax.jit, static_argnames="batches")
def sums(logits: jax.Array, batches: int) -> jax.Array:
    """Compute `logsumexp` of logits [N, V] as often as there are `batches`."""

    def step(at: jax.Array, _: Any) -> tuple[jax.Array, None]:
        return 1e-6 * jax.nn.logsumexp(logits + at[:, None], -1), None

    return lax.scan(step, jnp.zeros(len(logits)), None, length=batches)[0]


def finished(call: Callable[[], Any]) -> None:
    """Call a program and wait for it."""
    jax.block_until_ready(call())


def timed(tables: Any, first: int, tokens: Sequence[int], repeats: int) -> Row:
    """Return µs of a mask, of `logsumexp` over its row, and of a step by a token."""
    tables = jax.tree.map(jnp.asarray, tables)
    width = arena.room(len(tokens), 64)
    padded = jnp.array([*tokens, *[tokens[-1]] * (width - len(tokens))], jnp.int32)
    row = machine.init(first, MOST_TOKENS, DEPTH, False)
    rows = walked(tables, row, padded)
    at = np.linspace(0, len(tokens) - 1, NODES * BATCHES).round().astype(int)
    at = np.random.default_rng(0).permutation(at).reshape(BATCHES, NODES)
    nodes = jax.tree.map(lambda leaf: leaf[at], rows)
    vocab_size = tables.width.shape[1]
    logits = jax.random.normal(jax.random.key(0), (NODES, vocab_size))
    calls = {
        "mask": (NODES * BATCHES, lambda: masks(tables, nodes)),
        "logsumexp": (NODES * BATCHES, lambda: sums(logits, BATCHES)),
        "advance": (width, lambda: walked(tables, row, padded)),
    }
    result = {}
    for name, (count, call) in calls.items():
        finished(call)
        seconds = median(functools.partial(finished, call), repeats)
        result[name] = 1e6 * seconds / count
    return result


def measured(
    config: Any, store: RunFolder, trained: Trained, problems: Sequence[Problem]
) -> tuple[Row, list[Row]]:
    """Measure a vocabulary's set-up, and all problems in chunks of the run folder."""
    about = trained.file, trained.eos
    size = config.cost_chunk
    chunks = [
        range(i, min(i + size, len(problems))) for i in range(0, len(problems), size)
    ]
    keys = [f"{trained.size}-{i}-{len(chunk)}" for i, chunk in enumerate(chunks)]
    environment = {"JAX_PLATFORMS": "cpu", VARIABLE: OFF[0]}
    with (
        Worker(environment, one_core=True) as worker,
        console.bar(len(chunks), f"costs at {trained.size:,}") as bar,
    ):

        def prepared() -> Row:
            outcome = worker.call(LONG_LIMIT, setup, *about)
            if outcome.problem:
                raise ConstraintError(f"V={trained.size}: {outcome.problem}")
            return outcome.value

        def work(chunk: range) -> list[Row]:
            rows = []
            for i in chunk:
                if not worker.is_running:
                    worker.call(LONG_LIMIT, warm_up, *about)
                limits = i < config.timed, config.repeats
                outcome = worker.call(
                    config.limit, measure, *about, problems[i], *limits
                )
                stopped = {"name": problems[i].name, "stopped": outcome.problem}
                rows.append(stopped if outcome.problem else outcome.value)
            return rows

        start = store.make("costs", f"{trained.size}-setup", prepared)
        rows: list[Row] = []
        for key, chunk in zip(keys, chunks):
            bar.doing(f"{len(rows)} of {len(problems)}")
            rows += store.make("costs", key, functools.partial(work, chunk))
            bar.done()
    return start, rows
