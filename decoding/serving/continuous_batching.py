"""Continuous batching: waiting requests are admitted to the rows that are done.

Yao et al., *Flover: A Temporal Fusion Framework for Efficient Autoregressive Model
Parallel Inference*, 2023, arXiv 2305.13484, section 3: requests at different places of
their texts share every model call, and a finished one is replaced at once.

The loop stays on the device, and `advance` returns when `free` rows are done. The host
takes their texts and admits the next requests, whose prompts were prefilled `together`.
Shapes never change, so nothing compiles after the first requests, but for a prefill of
each size of chunk (`loops/prefill.py`: at most four). A text depends on its
request alone (see `decoding/noise.py`), and not on the row, the batch or the time of
admission. The drafter's `shared` state passes from request to request.

Deviations: the scheduler is this loop, not a thread; rows are masked, not moved side by
side (Flover's memory shuffle), because all rows of a batch cost the same.
"""

import collections
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from jax import Array

from decoding import base, compose
from decoding.loops import decode, engines, initial_state, streams
from models.distributed import sharding
from models.errors import PromptError

TOGETHER = 4  # prompts of a prefill
ROUNDS = 512  # rounds per device call at most, whether a row is done or not


class Finished(NamedTuple):
    """One request's text; times are seconds since `decode` began."""

    request: int  # index in `prompts`
    tokens: list[int]  # without the prompt
    logprobs: list[float]
    calls: int  # number of rounds
    admitted: float
    done: float


@dataclass
class Usage:
    """Counts that `decode_requests` updates; `seconds` exclude compilation."""

    rows: int = 0
    rounds: int = 0  # of the loop
    used: int = 0  # of rounds × rows, those whose row had a request
    seconds: float = 0.0
    compile_seconds: float = 0.0

    @property
    def occupancy(self) -> float:
        return self.used / max(self.rounds * self.rows, 1)


def decode_requests(
    parts: compose.Composition,
    params: base.Params,
    prompts: Sequence[Sequence[int]],
    limits: Sequence[int],
    keys: Array,
    batch: int,
    *,
    wanted: Sequence[int] | None = None,
    together: int = TOGETHER,
    free: int = 1,
    memory: Any = None,
    usage: Usage | None = None,
) -> Iterator[Finished]:
    """Decode prompts in `batch` rows; yield each text as it ends.

    Args:
        parts: the composition to decode with, of one setting for all requests or of one
            a prompt.
        params: all params, by name.
        prompts: token lists, of all requests.
        limits: the lengths, prompt included, at which the texts of all prompts end.
        keys: key[len(prompts)], from `engines.request_keys`.
        batch: number of rows.
        wanted: indices of the prompts to decode; None: all.
        together: prompts of a prefill. Its caches, of as many rows, exist beside those
            of the batch until the last of its requests is admitted.
        free: rows that must be done before their texts are taken; with `batch`, prompts
            are decoded batch by batch.
        memory: `out.memory` of an earlier call, or None.
        usage: counts to update.

    Raises:
        PromptError: a size below 1, a stream with prompts of its own, or a number of
            settings that is not that of the prompts.
    """
    for name, value in (("batch", batch), ("together", together), ("free", free)):
        if value < 1:
            raise PromptError(f"{name}={value}: use at least 1")
    for name, stream in streams.models(parts.program.streams).items():
        if stream.prompts is not None:
            raise PromptError(
                f"stream {name!r} has prompts of its own: use decoding.generate"
            )
    if len(parts.settings) not in (1, len(prompts)):
        raise PromptError(
            f"{len(parts.settings)} settings for {len(prompts)} prompts: compose with "
            "one number, or one a prompt"
        )
    usage = Usage() if usage is None else usage
    engine, size = engines.engine(parts), initial_state.bucket(max(limits))
    begun, compiled = time.perf_counter(), engine.compile_seconds

    def clock() -> float:
        usage.compile_seconds = engine.compile_seconds - compiled
        usage.seconds = time.perf_counter() - begun - usage.compile_seconds
        return usage.seconds

    def start(indices: Sequence[int], rows: int, memory: Any) -> decode.DecodeState:
        """Prefill the requests `indices`; further rows hold one token, no request."""
        none = rows - len(indices)
        texts = [*(prompts[i] for i in indices), *[[0]] * none]
        ends = [*(limits[i] for i in indices), *[1] * none]
        key_rows = np.asarray([*indices, *[0] * none], np.int32)
        return engine.start(
            *(params, parts, texts, ends, keys[key_rows], size, memory),
            share=False,
            requests=key_rows.tolist(),
            longest=longest,
        )

    # A policy's cache has places for any of them.
    longest = max(map(len, prompts)), max(e - len(p) for e, p in zip(limits, prompts))
    state = start((), batch, memory)
    state = engine.loop.idle(state)
    waiting = iter(range(len(prompts)) if wanted is None else wanted)
    ready: collections.deque[tuple[int, Any, int]] = collections.deque()
    fresh: Any = None
    rows: list[int | None] = [None] * batch
    admitted, calls = [0.0] * batch, np.zeros(batch, np.int64)
    usage.rows = batch
    while True:
        for row in range(batch):
            if rows[row] is not None:
                continue
            if not ready:
                indices = list(itertools.islice(waiting, together))
                if not indices:
                    break
                fresh = None  # free the last ones' caches before these are made
                fresh = start(indices, together, state.drafter.shared)
                if not engine.is_canvas:
                    state, fresh = _handed_over(state, fresh)
                ready.extend((i, fresh, source) for source, i in enumerate(indices))
            rows[row], fresh, source = ready.popleft()
            state = engine.admit(state, row, fresh, source)
            admitted[row], calls[row] = clock(), 0
        if not ready:
            fresh = None  # its caches are freed, and the rounds may use their memory
        idle = rows.count(None)
        if idle == batch:
            clock()
            return
        state = engine.advance(params, state, ROUNDS, min(idle + free, batch))
        progress = (state.done, state.length, state.counters.target_calls)
        done, ends, now = sharding.fetch(progress)
        taken = np.where([i is not None for i in rows], now - calls, 0)
        usage.rounds += int(taken.max())
        usage.used += int(taken.sum())
        calls = now.astype(np.int64)
        over = [r for r, i in enumerate(rows) if i is not None and done[r]]
        if len(over) < min(free, batch - idle):
            continue
        tokens, logprobs = sharding.fetch((state.tokens, state.logprobs))
        for row in over:
            index: Any = rows[row]
            rows[row] = None
            span = slice(len(prompts[index]), int(ends[row]))
            yield Finished(
                index,
                tokens[row, span].tolist(),
                logprobs[row, span].tolist(),
                int(now[row]),
                admitted[row],
                clock(),
            )


def _handed_over(
    state: decode.DecodeState, fresh: decode.DecodeState
) -> tuple[decode.DecodeState, decode.DecodeState]:
    """Move the drafter's `shared` state from `fresh`, which updated it, to `state`.

    `state` is donated every round, so `fresh` must not refer to the same buffers.
    """
    shared = fresh.drafter.shared
    return (
        replace(state, drafter=base.State(state.drafter.row, shared)),
        replace(fresh, drafter=base.State(fresh.drafter.row)),
    )
