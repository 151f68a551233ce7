"""Time a round's draft alone, by the tree that it grows."""

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax import lax

from decoding import noise
from decoding.loops import decode, engines
from experiments.measurement.block_width_cost import QUARTS
from experiments.measurement.workbench import Bench, Case

DRAFTS = 24  # in one compiled loop, so that dispatch is not measured


def draft_times(
    bench: Bench,
    cases: Mapping[str, Case],
    prompt: Sequence[int],
    drafts: int = DRAFTS,
    repeats: int = 5,
) -> dict[str, dict[str, Any]]:
    """Time the drafts of `cases` after a prompt, one text, in turns.

    Every draft starts from a token of the one before, so that none is computed once for
    all of them.

    Returns:
        Of each case the median `ms` of a draft and its quartiles `ms_quartiles` over
        repeats.
    """
    runs = {name: _program(bench, case, prompt) for name, case in cases.items()}
    times: dict[str, list[float]] = {name: [] for name in cases}
    for run in runs.values():
        jax.block_until_ready(run(drafts))  # compiled
    for _ in range(repeats):
        for name, run in runs.items():
            begun = time.perf_counter()
            jax.block_until_ready(run(drafts))
            times[name].append(1e3 * (time.perf_counter() - begun) / drafts)
    return {
        name: {
            "ms": statistics.median(each),
            "ms_quartiles": [float(x) for x in np.quantile(each, QUARTS)],
        }
        for name, each in times.items()
    }


def _program(bench: Bench, case: Case, prompt: Sequence[int]) -> Any:
    """Compile a loop of drafts; the function takes their number, returns the roots."""
    parts = bench.compose(case)
    program, params = parts.program, bench.params(bench.lm)
    keys, limit = engines.request_keys(0, 1, 1), len(prompt) + bench.new_tokens
    state = engines.engine(parts).start(
        params, parts, [list(prompt)], [limit], keys, bench.size
    )

    def run(params: Any, state: decode.DecodeState, drafts: jax.Array) -> jax.Array:
        def body(_: jax.Array, tokens: jax.Array) -> jax.Array:
            now = replace(state, tokens=tokens)
            ctx = decode.context(program, params, now)
            key = noise.for_role(now.key, noise.DRAFT, now.length)
            grown = program.drafter.draft(key, ctx, now.drafter)[0]
            return tokens.at[0, now.length[0] - 1].set(grown.tokens[0, -1])

        return lax.fori_loop(0, drafts, body, state.tokens)[0, : len(prompt)]

    compiled = jax.jit(run)
    return lambda drafts: compiled(params, state, drafts)
