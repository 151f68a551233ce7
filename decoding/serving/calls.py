"""A call of `generate` that runs, and the output of its finished rows."""

import time
from dataclasses import replace
from typing import Any, NamedTuple

from decoding import base, compose
from decoding.automata import matchers
from decoding.loops import decode, engines, state_sharding, stats
from decoding.serving import constraining, requests, results, scoring, searching
from decoding.serving.output import Output


class Call(NamedTuple):
    """A call whose prompts are prefilled."""

    lm: Any
    settings: requests.Settings
    requests: requests.Requests
    running: requests.Requests  # the rows that are decoded
    parts: compose.Composition
    params: base.Params
    engine: engines.Engine
    state: decode.DecodeState
    begun: float
    compiled: float  # seconds of compilation that the engine had before
    sizes: tuple[int, int]  # scratch slots of a search, at first and at most
    memory: stats.Memory
    prefixes: Any = None  # what loads them


def output(
    call: Call, state: decode.DecodeState, found: searching.Found | None = None
) -> Output:
    """Read the finished state on the host."""
    results.check_pool(state)
    compiled = call.engine.compile_seconds - call.compiled
    seconds = time.perf_counter() - call.begun - compiled
    lm, asked, settings = call.lm, call.requests, call.settings
    rank, scores = call.parts.program.rank, None
    if settings.top_logprobs or settings.prompt_logprobs:
        weights, k = call.params["target"], settings.top_logprobs
        scores = scoring.score(lm.model, weights, state.tokens, state.length, k)
    fetched = results.Rows(**state_sharding.results(state))
    shown = asked if rank is None else call.running
    texts = results.of_rows(lm, settings, shown, fetched, scores)
    rows = [texts[i : i + shown.n] for i in range(0, len(texts), shown.n)]
    values = None if found is None else found.scores.tolist()
    if rank is not None:
        bare = texts
        if settings.echo:
            without = replace(settings, echo=False)
            bare = results.of_rows(lm, without, shown, fetched, scores)
        samples = searching.samples(lm, shown, bare)
        if (reward := call.parts.program.reward) is not None:
            about = (call.engine, reward, call.params, call.running, fetched)
            samples = searching.valued(lm, *about, samples)
        rows, values = searching.ranked(rank, rows, samples, asked.n)

    def group(name: str) -> list:
        named = [[getattr(text, name) for text in row] for row in rows]
        return [row[0] for row in named] if asked.n == 1 else named

    guarantee, loaded = call.parts.guarantee, 0
    if call.prefixes is not None:
        guarantee, loaded = call.prefixes.guarantee(guarantee), call.prefixes.tokens
    optional = {
        "prefixes": None if call.prefixes is None else call.prefixes.loaded,
        "top_logprobs": group("top_logprobs") if settings.top_logprobs else None,
        "prompt_logprobs": [row[0].prompt_logprobs for row in rows]
        if settings.prompt_logprobs
        else None,
        "scores": values,
        "order": None if fetched.order is None else group("order"),
    }
    if asked.constraints is not None:
        optional["engine"] = [constraint.engine for constraint in asked.constraints]
        prompts = asked.rows[:: asked.n]
        before = [len(row) if settings.echo else 0 for row in prompts]
        new = [[t.tokens[at:] for t in row] for at, row in zip(before, rows)]
        after = (asked.suffixes or [[]] * len(asked.rows))[:: asked.n]
        whole = [[t + behind for t in row] for row, behind in zip(new, after)]
        verdicts = constraining.accepted(lm, asked.constraints, prompts, whole)
        forced = constraining.forced(lm, asked.constraints, new)
        single = asked.n == 1
        optional["accepted"] = [r[0] for r in verdicts] if single else verdicts
        optional["forced"] = [r[0] for r in forced] if single else forced
    if values is not None and asked.n == 1:
        optional["scores"] = [row[0] for row in values]
    figures = stats.summarise(
        fetched.counters, seconds, compiled, found, call.memory, loaded
    )
    program = call.parts.program
    masks = [*map(type, program.streams.values())].count(matchers.Matched)
    holes = program.transform.holes if call.engine.is_canvas else None
    masks += holes is not None and holes.first is not None
    figures = stats.with_masks(figures, masks)
    return Output(
        tokens=group("tokens"),
        texts=None if lm.tokenizer is None else group("text"),
        logprobs=group("logprobs"),
        origin=group("origin"),
        finish_reason=group("finish_reason"),
        memory=state.drafter.shared,
        exits=state.exit.shared,
        stats=figures,
        guarantee=guarantee,
        **optional,
    )
