"""Measure one row of the report: a method on a task beside plain decoding."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from decoding import Method, base
from decoding.loops import engines
from experiments.measurement import bootstrap, identity, workbench
from experiments.measurement.workbench import Bench, Case, Run
from models.distributed import sharding

LOOPING = 0.3  # a text whose loop share is at least this repeats itself


@dataclass(frozen=True)
class Cell:
    """The settings of a row, and its key."""

    name: str
    method: Method
    task: str
    temperature: float
    seed: int
    batch: int
    width: str = "paper"

    @property
    def key(self) -> str:
        law = f"t{self.temperature:g}-b{self.batch}-s{self.seed}"
        width = "" if self.width == "paper" else f"-{self.width}"
        return f"{self.name}-{self.task}-{law}{width}"


def row(
    bench: Bench,
    cell: Cell,
    plain: Method,
    prompts: Sequence[list[int]],
    repeats: int,
    bandwidth: float,
) -> dict[str, Any]:
    """Measure a cell.

    Times are of the decode loop; those of prefill and compilation are separate. Each
    repeat decodes every prompt three times in turns: by the method, by the method with
    a constant in place of the target's call, and by plain decoding. Batches are decoded
    in order and a drafter's memory starts empty in every repeat, so texts and calls are
    equal in all repeats. Plain decoding's own speed-up shows the noise. The row holds
    the times of every repeat beside their medians, so that a report shows the spread.

    Args:
        bench: the target, its drafts and sizes.
        cell: the method and its settings.
        plain: plain decoding, with the task's transforms.
        prompts: token prompts.
        repeats: timings of each prompt.
        bandwidth: read bandwidth in GB/s.

    A row of width "auto" has no `draft_share`: its widths follow what is accepted, and
    a constant accepts nothing.

    Returns:
        The report's row under "row", and texts under "samples".
    """
    case = Case(cell.method, cell.temperature, width=cell.width)
    reference = Case(plain, cell.temperature)
    stub = Case(cell.method, cell.temperature, constant=True)
    cases = (case, reference, *[stub] * (cell.width == "paper"))
    turns = [bench.interleaved(cases, prompts, cell.seed) for _ in range(repeats)]
    runs, first, base = [turn[0] for turn in turns], turns[0][0], turns[0][1]
    comparison = identical(bench, cell, reference, first, base, prompts)
    by_repeat = {
        "tokens_per_s": [_speed(run) for run in runs],
        "speedup": [_speed(run) / _speed(other) for run, other, *_ in turns],
        "speedup_with_prefill": [
            _speed(run, True) / _speed(other, True) for run, other, *_ in turns
        ],
        "draft_share": [
            stubbed.per_round / run.per_round
            for run, _, *stubs in turns
            for stubbed in stubs
        ],
    }
    seconds_by_batch = [run.batch_seconds for run in runs]
    plain_seconds_by_batch = [other.batch_seconds for _, other, *_ in turns]
    read = workbench.bytes_read(bench, case, runs[0], prompts)
    seconds = statistics.median(run.seconds for run in runs)
    counts = [len(text) for text in first.tokens]
    looping = workbench.loops(first)
    accepted, committed = workbench.by_depth(first)
    parts = bench.compose(case)
    measured = {
        "key": cell.key,
        "method": cell.name,
        "width": cell.width,
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
        "accepted_by_depth": accepted,
        "committed_by_depth": committed,
        "accepted_by_rank": workbench.by_rank(first),
        "drafted_per_call": first.candidates / max(sum(first.calls), 1),
        "wasted": float(workbench.wasted(first)),
        "loop_share": float(np.mean(looping)),
        "repeated_4grams": float(
            np.mean([workbench.repeated(t) for t in first.tokens])
        ),
        **_loop_free(counts, first.calls, looping),
        **{
            name: statistics.median(values) if values else None
            for name, values in by_repeat.items()
        },
        "by_repeat": by_repeat,
        "speedup_ci95": bootstrap.speedup_interval(
            seconds_by_batch,
            plain_seconds_by_batch,
            _by_batch(first, cell.batch),
            _by_batch(base, cell.batch),
        ),
        "seconds": seconds_by_batch,  # [repeats][batches], in the decode loop
        "plain_seconds": plain_seconds_by_batch,  # of plain decoding in the same turns
        "ms_per_round": 1e3 * seconds / max(runs[0].rounds, 1),
        "prefill_seconds": statistics.median(run.prefill_seconds for run in runs),
        "mbu": read / (bandwidth * 1e9 * seconds),
        "draft_calls": first.draft_calls,
        "nodes": parts.program.drafter.nodes,
        **comparison,
        "compile_seconds": first.compile_seconds,
    }
    return {"row": measured, "samples": samples(bench.lm, prompts, first, looping)}


def _speed(run: Run, prefill: bool = False) -> float:
    return run.new_tokens / (run.seconds + prefill * run.prefill_seconds)


def _by_batch(run: Run, batch: int) -> list[int]:
    """Count the new tokens of each batch."""
    counts = np.asarray([len(text) for text in run.tokens])
    return counts.reshape(-1, batch).sum(1).tolist()


def _loop_free(
    counts: Sequence[int], calls: Sequence[int], shares: Sequence[float]
) -> dict[str, Any]:
    """Compute tokens per call over texts whose loop share is below `LOOPING`."""
    loop_free = [i for i, share in enumerate(shares) if share < LOOPING]
    new, used = sum(counts[i] for i in loop_free), sum(calls[i] for i in loop_free)
    return {
        "loop_free_prompts": len(loop_free),
        "tokens_per_call_loop_free": new / used if used else None,
    }


def identical(bench, cell, reference, run, plain, prompts) -> dict[str, Any]:
    """Compare the texts of `run` with those of `plain`, where they must be equal.

    Args:
        bench: the target, its drafts and sizes.
        cell: the method and its settings.
        reference: plain decoding's case.
        run: the method's `Run`.
        plain: plain decoding's `Run` on the same prompts.
        prompts: token prompts.

    Returns:
        Fields of the row; `identical_to_plain` is None where only laws are equal, and
        for LOSSY methods, whose row holds the nats of `quality` too.
    """
    parts = bench.compose(Case(cell.method, cell.temperature))
    reason = identity.claim(cell.method, parts.guarantee, cell.temperature)
    if reason is not None:
        empty = {"compared_tokens": 0, "ties": 0, "differences": []}
        lossy = parts.guarantee == base.LOSSY
        measured = quality(bench.lm, run, plain, prompts) if lossy else {}
        return {"identical_to_plain": None, "law_test": reason, **empty, **measured}
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
    comparison = identity.compare(run.tokens, plain.tokens, scores, eps)
    return {
        "identical_to_plain": comparison.identical,
        "compared_tokens": comparison.compared,
        "ties": comparison.ties,
        "differences": comparison.differences,
    }


def quality(
    lm: Any, run: Run, plain: Run, prompts: Sequence[list[int]]
) -> dict[str, float]:
    """Compute nats a token under the whole target `lm`, of both runs' texts.

    The law is the target's at T = 1 without transforms, for every temperature of the
    texts. A text that is likelier than plain decoding's need not be better.
    """

    def nats(prompt: list[int], text: list[int]) -> float:
        logp = jax.nn.log_softmax(identity.logits(lm, [*prompt, *text]))
        at = len(prompt) - 1 + np.arange(len(text))
        return -float(sharding.fetch(logp[at, np.array(text, int)].sum()))

    return {
        name: sum(map(nats, prompts, texts)) / max(sum(map(len, texts)), 1)
        for name, texts in (
            ("nats_per_token", run.tokens),
            ("plain_nats_per_token", plain.tokens),
        )
    }


def pieces(lm: Any, tokens: Sequence[int]) -> list[str]:
    """Decode each token to the text it completes; without a tokenizer to `<id>`."""
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
    """Collect texts with the origin of every token, for the page."""
    texts = []
    for i, prompt in enumerate(prompts):
        texts.append(
            {
                "prompt": "".join(pieces(lm, prompt)),
                "pieces": pieces(lm, run.tokens[i]),
                "origin": run.origin[i],
                "calls": run.calls[i],
                "loop_share": shares[i],
            }
        )
    return texts


def rounds(
    bench: Bench, case: Case, prompt: list[int], key: Any, count: int, memory: Any
) -> list[dict[str, Any]]:
    """Record the trees of the first `count` rounds, with the accepted paths.

    Args:
        bench: the target, its drafts and sizes.
        case: the method and temperature.
        prompt: tokens of one prompt.
        key: its request key.
        count: most rounds.
        memory: the drafter's shared state after earlier texts; None: empty.
    """
    parts = bench.compose(case)
    engine, params = engines.engine(parts), bench.params(bench.lm)
    limits = [len(prompt) + bench.new_tokens]
    state = engine.start(params, parts, [prompt], limits, key, bench.size, memory)
    drawn: list[dict[str, Any]] = []
    while len(drawn) < count and not bool(state.done.all()):
        state, outcome = engine.step(params, state)
        draft, verdict = jax.device_get((outcome.tree, outcome.verdict))
        depth = max(int(verdict.count[0]), 0)
        drawn.append(
            {
                "tokens": [_one(bench.lm, int(t)) for t in draft.tokens[0]],
                "parents": draft.parents[0].tolist(),
                "kind": draft.kind[0].tolist(),
                "path": verdict.path[0, :depth].tolist(),
                "token": _one(bench.lm, int(verdict.token[0])),
            }
        )
    return drawn


def _one(lm: Any, token: int) -> str:
    return pieces(lm, [token])[0] or "<end>"


def profile(
    bench: Bench, case: Case, prompts: Sequence[list[int]], folder: str
) -> None:
    """Write a profiler trace of one batch, after compilation."""
    part, keys = bench.batches(prompts, 0)[0]
    bench.decode(case, part, keys, Run())
    with jax.profiler.trace(folder):
        bench.decode(case, part, keys, Run())
