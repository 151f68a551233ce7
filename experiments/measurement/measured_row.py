"""One row of the report: a method on a task beside plain decoding."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from decoding import Method
from decoding.loops import engines
from experiments.measurement import bootstrap, identity, workbench
from experiments.measurement.workbench import Bench, Case, Run

LOOPING = 0.3  # a text whose loop share is at least this repeats itself


@dataclass(frozen=True)
class Cell:
    """Where a row stands in the table."""

    name: str
    method: Method
    task: str
    temperature: float
    seed: int
    batch: int

    @property
    def key(self) -> str:
        law = f"t{self.temperature:g}-b{self.batch}-s{self.seed}"
        return f"{self.name}-{self.task}-{law}"


def row(
    bench: Bench,
    cell: Cell,
    plain: Method,
    prompts: Sequence[list[int]],
    repeats: int,
    bandwidth: float,
) -> dict[str, Any]:
    """Measure a cell. Returns the report's row under "row" and texts under "samples".

    Times are of the decode loop; prefill stands beside them, compilation apart. In each
    repeat every prompt is decoded by the method, by the method with the target's call
    replaced by a constant, and by plain decoding, in turns. Batches are decoded in
    order and a drafter's memory starts empty in every repeat, so texts and calls are
    the same in all of them. Plain decoding's own speed-up shows the noise.
    """
    case = Case(cell.method, cell.temperature)
    reference = Case(plain, cell.temperature)
    stub = Case(cell.method, cell.temperature, constant=True)
    cases = (case, stub, reference)
    turns = [bench.interleaved(cases, prompts, cell.seed) for _ in range(repeats)]
    runs, first, base = [turn[0] for turn in turns], turns[0][0], turns[0][2]
    same = identical(bench, cell, reference, first, base, prompts)
    speeds = [_speed(run) for run in runs]
    ratios = [_speed(run) / _speed(other) for run, _, other in turns]
    whole = [_speed(run, True) / _speed(other, True) for run, _, other in turns]
    shares = [empty.per_round / run.per_round for run, empty, _ in turns]
    read = workbench.bytes_read(bench, case, runs[0], prompts)
    seconds = statistics.median(run.seconds for run in runs)
    counts = [len(text) for text in first.tokens]
    looping = workbench.loops(first)
    given, committed = workbench.by_depth(first)
    parts = bench.compose(case)
    measured = {
        "key": cell.key,
        "method": cell.name,
        "guarantee": workbench.guarantee(bench, case),
        "task": cell.task,
        "temperature": cell.temperature,
        "batch": cell.batch,
        "seed": cell.seed,
        "repeats": repeats,
        "prompts": len(prompts),
        "new": counts,  # of every prompt
        "calls": first.calls,
        "new_tokens": sum(counts),
        "target_calls": sum(first.calls),
        "tokens_per_call": sum(counts) / max(sum(first.calls), 1),
        "ci95": bootstrap.tokens_per_call_interval(counts, first.calls),
        "accepted_by_depth": given,
        "committed_by_depth": committed,
        "accepted_by_rank": workbench.by_rank(first),
        "drafted_per_call": first.candidates / max(sum(first.calls), 1),
        "wasted": float(workbench.wasted(first)),
        "loop_share": float(np.mean(looping)),
        "repeated_4grams": float(
            np.mean([workbench.repeated(t) for t in first.tokens])
        ),
        **_loop_free(counts, first.calls, looping),
        "tokens_per_s": statistics.median(speeds),
        "speedup": statistics.median(ratios),
        "speedup_with_prefill": statistics.median(whole),
        "ms_per_round": 1e3 * seconds / max(runs[0].rounds, 1),
        "prefill_seconds": statistics.median(run.prefill_seconds for run in runs),
        "mbu": read / (bandwidth * 1e9 * seconds),
        "draft_share": statistics.median(shares),
        "draft_calls": first.draft_calls,
        "nodes": parts.program.drafter.nodes,
        **same,
        "compile_seconds": first.compile_seconds,
    }
    return {"row": measured, "samples": samples(bench.lm, prompts, first, looping)}


def _speed(run: Run, prefill: bool = False) -> float:
    return run.new_tokens / (run.seconds + prefill * run.prefill_seconds)


def _loop_free(
    counts: Sequence[int], calls: Sequence[int], shares: Sequence[float]
) -> dict[str, Any]:
    kept = [i for i, share in enumerate(shares) if share < LOOPING]
    new, used = sum(counts[i] for i in kept), sum(calls[i] for i in kept)
    return {
        "loop_free_prompts": len(kept),
        "tokens_per_call_loop_free": new / used if used else None,
    }


def identical(bench, cell, reference, run, plain, prompts) -> dict[str, Any]:
    parts = bench.compose(Case(cell.method, cell.temperature))
    why = identity.claim(cell.method, parts.guarantee, cell.temperature)
    if why is not None:
        nothing = {"compared_tokens": 0, "ties": 0, "differences": []}
        return {"identical_to_plain": None, "law_test": why, **nothing}
    keys = engines.request_keys(cell.seed, len(prompts), 1)
    scores = identity.Recomputed(
        bench.lm,
        bench.compose(reference),
        prompts,
        plain.tokens,
        keys,
        noisy=cell.temperature > 0,
    )
    dtype = jax.tree.leaves(bench.lm.params)[0].dtype
    eps = float(jax.numpy.finfo(dtype).eps)
    found = identity.compare(run.tokens, plain.tokens, scores, eps)
    return {
        "identical_to_plain": found.identical,
        "compared_tokens": found.compared,
        "ties": found.ties,
        "differences": found.differences,
    }


def pieces(lm: Any, tokens: Sequence[int]) -> list[str]:
    """The text that each token completes; ids in angle brackets without a tokenizer."""
    if lm.tokenizer is None:
        return [f"<{t}>" for t in tokens]
    stream = lm.tokenizer.stream()
    out = ["" if t in lm.model.config.eos else stream.push(t) for t in tokens]
    if out:
        out[-1] += stream.flush()
    return out


def samples(
    lm: Any, prompts: Sequence[list[int]], run: Run, shares: Sequence[float]
) -> list[dict[str, Any]]:
    """Texts with the origin of every token, for the page."""
    found = []
    for i, prompt in enumerate(prompts):
        found.append(
            {
                "prompt": "".join(pieces(lm, prompt)),
                "pieces": pieces(lm, run.tokens[i]),
                "origin": run.origin[i],
                "calls": run.calls[i],
                "loop_share": shares[i],
            }
        )
    return found


def rounds(
    bench: Bench, case: Case, prompt: list[int], key: Any, count: int, memory: Any
) -> list[dict[str, Any]]:
    """The trees of the first `count` rounds, and the path that was accepted."""
    parts = bench.compose(case)
    engine, params = engines.engine(parts), bench.params(bench.lm)
    limits = [len(prompt) + bench.new_tokens]
    state = engine.start(params, parts, [prompt], limits, key, bench.size, memory)
    found: list[dict[str, Any]] = []
    while len(found) < count and not bool(state.done.all()):
        state, outcome = engine.step(params, state)
        draft, verdict = jax.device_get((outcome.tree, outcome.verdict))
        kept = max(int(verdict.count[0]), 0)
        found.append(
            {
                "tokens": [_one(bench.lm, int(t)) for t in draft.tokens[0]],
                "parents": draft.parents[0].tolist(),
                "kind": draft.kind[0].tolist(),
                "path": verdict.path[0, :kept].tolist(),
                "token": _one(bench.lm, int(verdict.token[0])),
            }
        )
    return found


def _one(lm: Any, token: int) -> str:
    return pieces(lm, [token])[0] or "<end>"


def profile(
    bench: Bench, case: Case, prompts: Sequence[list[int]], folder: str
) -> None:
    """A profiler trace of one batch, compiled before it begins."""
    part, keys = bench.batches(prompts, 0)[0]
    bench.decode(case, part, keys, Run())
    with jax.profiler.trace(folder):
        bench.decode(case, part, keys, Run())
