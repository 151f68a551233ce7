"""`generate` and `stream`: prompts in, texts out, on any model and method."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax

from decoding import base, compose
from decoding.block_width import choice, tuning
from decoding.loops import engines, initial_state
from decoding.method import Method
from decoding.serving import (
    calls,
    canvases,
    prefix_loading,
    procedures,
    requests,
    searching,
    streaming,
)
from decoding.serving.calls import Call
from decoding.serving.output import Output
from decoding.serving.streaming import Piece
from models.errors import MethodError


def generate(
    lm: Any,
    prompts: Sequence[Any],
    method: str | Method | None = None,
    max_new_tokens: int | Sequence[int] = 128,
    temperature: float | Sequence[float] = 0.0,
    transforms: Sequence[Any] = (),
    n: int = 1,
    seed: int | Sequence[int] = 0,
    stop: str | Sequence[Any] | None = None,
    drafts: Mapping[str, Any] | None = None,
    memory: Any = None,
    streams: base.Streams | None = None,
    loop: engines.Loop | None = None,
    *,
    reward: Any = (),
    top_k: int | Sequence[int | None] | None = None,
    top_p: float | Sequence[float | None] | None = None,
    min_p: float | Sequence[float | None] | None = None,
    repetition_penalty: float | Sequence[float | None] | None = None,
    stop_token_ids: int | Sequence[Any] | None = None,
    top_logprobs: int = 0,
    prompt_logprobs: bool = False,
    echo: bool = False,
    width: str | int | None = None,
    prefill_chunk: int | None = None,
    contexts: Sequence[Any] | None = None,
    prefixes: Any = None,
    constraint: Any = None,
    finish: bool = False,
    engine: str = "auto",
    jump_forward: bool = False,
    suffix: Any = None,
) -> Output:
    """Decode every prompt in one batch.

    Settings marked † take one value for all P prompts, or a list of P values. They lie
    in the state of the rows, as `stop` and `stop_token_ids` do. So one compiled program
    serves all values, and a prompt's text is that of a call of it alone with its
    settings and seed. Another program exists for calls of temperature 0 alone, and for
    calls with stop strings.

    Args:
        lm: the model that `models.load` returns, or the name that it takes.
        prompts: P texts, token lists of any lengths, or conversations: lists of
            messages, dicts with `role` and `content`.
        method: a name or path that `recipes.config` resolves, or a `Method`. None: the
            method of the model's heads, or plain decoding without heads.
        max_new_tokens: † tokens per text at most, 1 or more.
        temperature: † 0 decodes greedily.
        transforms: applied after the method's own, warpers after the temperature. Each
            is a `Spec`, a built `LogitsTransform`, a function of logits float32[V],
            tokens int32[T] and length int32[] that returns logits, or a list of P specs
            of one file that differ in numbers.
        n: samples per prompt; sample 0 is the text of `n=1`. Of a search its n best
            texts, the best first.
        seed: † of the sampled texts. One for all gives each prompt other noise, by its
            index.
        stop: a string or strings that end a text. A list of P lists (or None) gives
            each prompt its own.
        drafts: `{"draft": lm2}` for a draft model, `{"heads": params}` for heads; the
            names are those of `base.Params`.
        memory: `out.memory` of an earlier call with the same method.
        streams: name -> another model run on the same tokens, or a law of the target's
            states (`Derived`), for transforms that read it.
        loop: `loop(step, state) -> state` runs the rounds on the host, to stream or
            record them; `step(state) -> (state, outcome)`. None: on the device.
        reward: what a search values texts by, in place of the method's: a `Spec` of
            rewards/, a function of a list of `Sample` that returns a number for each,
            or a list of a reward and those that wrap it, such as `rewards/calibrated`.
        top_k: † keep the k best tokens. This and the next three are short for the
            transforms of those names, in the order of HF transformers; None in a list
            leaves its prompt as it is.
        top_p: † keep the nucleus of this mass, in (0, 1].
        min_p: † keep tokens at least this share as probable as the best one.
        repetition_penalty: † divide (positive) or multiply the logits of seen tokens.
        stop_token_ids: tokens that end a text, beside the model's EOS: ids, or P lists
            of ids (or None).
        top_logprobs: k: return the k best tokens in the place of each generated token,
            0 to V. Log-probabilities are those of the target's raw law: the whole
            model, without temperature, transforms, exit or cache policy, from one pass
            over the finished texts. They may differ from `logprobs` by rounding, and
            under an exit or a policy by its effect. `stats` leave this pass out.
        prompt_logprobs: return the raw log-probability of each prompt token, from the
            same pass.
        echo: begin `tokens` and `texts` with the prompt.
        width: nodes of a block that the target verifies. "auto": in every round those
            that decode the most tokens a second on this device, plain decoding among
            them, by times that the first call measures (`decoding.tune`) and by what
            recent texts accepted; a method whose guarantee is LOSSY keeps its own.
            "paper": those of the method. A number: at most so many. None: as the
            environment's `DECODAX_WIDTH` says, else "auto".
        prefill_chunk: tokens of a prompt in a call of the target, 1 or more. None: as
            many as pay (`decoding.loops.prefill.chunk_size`). Texts differ by rounding.
        contexts: P texts or token lists that precede the prompts. The cache policy
            compresses them before it reads the prompts.
        prefixes: a `serving.prefix_store.PrefixStore`, from which the longest stored
            prefix of each prompt is loaded; `out.prefixes` says what was.
        constraint: a grammar that every text is one of: `{"json_schema": schema}`,
            `{"regex": pattern}`, ... (`automata.compiled.parse`), or a list of one a
            prompt; None there: any text. Other transforms come before it, warpers
            after it. `out.accepted` says which texts are whole ones.
            Or a function of the text's tokens int32[T] that returns the ids that may
            follow (or bool[V]), or an `automata.matchers.Matcher`. A diffusion model
            takes grammars alone: its text, `suffix` included, is always a whole one.
        finish: a text under a constraint always ends within `max_new_tokens`.
        engine: where a grammar runs. "device": inside the loop. "host": by llguidance,
            for which every round waits (`out.stats.host_syncs`). "auto": on the device
            if that holds it (`out.engine`). Functions and matchers run on the host.
        jump_forward: draft the text that a grammar determines (keys, punctuation) at
            once, beside the method's drafts (`drafters/forced`): fewer calls, and the
            same law. `out.forced` counts such tokens.
        suffix: of a diffusion model: a text that stands behind the `max_new_tokens`
            tokens, or a list of P texts or token lists.

    Returns:
        An `Output`: the texts, their tokens and log-probabilities, and the run's
        statistics.

    Raises:
        PromptError: an empty, too long or out-of-range prompt, a list of another length
            than the prompts, or a request that cannot be served (a paged cache's pool
            is too small for it).
        ConstraintError: a grammar that does not compile, does not fit the model, or has
            no text for the positions of a canvas.
        MethodError: an unknown method, a number that a transform refuses, or parts that
            do not fit together.
    """
    settings = _settings(locals())
    if (looping := procedures.of(lm, settings)) is not None:
        return procedures.run(generate, lm, settings, looping, loop)
    call = _start(lm, settings)
    program = call.parts.program
    if loop is not None and (program.select or program.rank):
        raise MethodError("loop= runs rounds on the host, a search has none: leave it")
    if program.select is not None:
        return _searched(call)
    if loop is None:
        state = tuning.run(call.engine, call.params, call.parts, call.state)
    else:
        state = loop(lambda s: call.engine.step(call.params, s), call.state)
        tuning.ended(call.parts, state)
    return calls.output(call, jax.block_until_ready(state))


def _searched(call: Call) -> Output:
    """Run the search of a started call."""
    found: Any = (call.parts.program.select, call.parts.program.reward)
    state, syncs = searching.run(
        *(call.lm, call.engine, call.params, found, call.state),
        *(call.requests, call.sizes),
    )
    rows, found = searching.texts(state, call.requests, syncs)
    return calls.output(call, rows, found)


def stream(
    lm: Any,
    prompts: Sequence[Any],
    method: str | Method | None = None,
    max_new_tokens: int | Sequence[int] = 128,
    temperature: float | Sequence[float] = 0.0,
    transforms: Sequence[Any] = (),
    n: int = 1,
    seed: int | Sequence[int] = 0,
    stop: str | Sequence[Any] | None = None,
    drafts: Mapping[str, Any] | None = None,
    memory: Any = None,
    streams: base.Streams | None = None,
    *,
    top_k: int | Sequence[int | None] | None = None,
    top_p: float | Sequence[float | None] | None = None,
    min_p: float | Sequence[float | None] | None = None,
    repetition_penalty: float | Sequence[float | None] | None = None,
    stop_token_ids: int | Sequence[Any] | None = None,
    width: str | int | None = None,
    prefill_chunk: int | None = None,
    contexts: Sequence[Any] | None = None,
    prefixes: Any = None,
    constraint: Any = None,
    finish: bool = False,
    engine: str = "auto",
    jump_forward: bool = False,
    suffix: Any = None,
) -> Iterator[Piece]:
    """Yield the texts of `generate` as they grow, round by round, all rows together.

    The arguments are those of `generate`. A row's pieces concatenate to its text in
    `generate`'s output. A piece ends at a character's end; what may become a stop
    string is held back until it is decided. The host waits for every round, so this is
    slower than `generate`.

    Raises:
        PromptError, MethodError: as `generate`, before the first piece.
    """
    return streaming.pieces(_start(lm, _settings(locals()), streamed=True))


def _settings(arguments: Mapping[str, Any]) -> requests.Settings:
    """Collect the arguments of `generate` or `stream`, less the model and the loop."""
    return requests.Settings(
        **{k: v for k, v in arguments.items() if k not in ("lm", "loop")}
    )


def tune(
    lm: Any,
    method: str | Method | None = None,
    batch: int = 1,
    prompt_tokens: int = 64,
    max_new_tokens: int = 128,
    temperature: float = 0.0,
    drafts: Mapping[str, Any] | None = None,
    transforms: Sequence[Any] = (),
) -> tuning.Times:
    """Measure what a round of `method` costs by block width, and keep it.

    `generate` measures by itself where nothing is kept; this measures anew, for calls
    of the same method, batch and buffer (prompt and new tokens).

    Args:
        lm: as in `generate`, like `method` and `drafts`.
        method: the method to measure.
        batch: number of rows.
        prompt_tokens: length of the prompts.
        max_new_tokens: tokens per text.
        temperature: 0, or any other number for sampling.
        drafts: its models and heads.
        transforms: as in `generate`; other ones have other times.

    Returns:
        Milliseconds: `plain`, a round without a draft; `block`, with the whole draft,
        by `widths`; `level`, of a level of the draft.

    Raises:
        MethodError: the method has no widths to choose from: plain decoding, or a
            method whose text depends on its blocks.
    """
    settings = requests.Settings(
        prompts=[[0] * prompt_tokens] * batch,
        method=method,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        drafts=drafts,
        transforms=transforms,
        width="auto",
    )
    *_, parts, params, engine, size = _composed(lm, settings)
    costs = tuning.costs_of(engine, params, parts, batch, size, again=True)
    if costs is None:
        raise MethodError(
            f"{method or 'plain decoding'} has no widths to measure: its guarantee is "
            f"{parts.guarantee}, and its blocks are of {parts.program.drafter.nodes}"
        )
    return tuning.times(parts, costs)


class _Ready(NamedTuple):
    """A call whose program is composed, and nothing is run."""

    lm: Any
    requests: requests.Requests
    running: requests.Requests  # the rows that are decoded
    parts: compose.Composition
    params: base.Params
    engine: engines.Engine
    size: int  # of the token buffer


def _composed(lm: Any, settings: requests.Settings) -> _Ready:
    """Check everything and compose the method."""
    if type(lm) is str:
        lm = requests.named(lm)
    lm, chosen, drafts = requests.with_heads(lm, settings.method, settings.drafts)
    canvases.check(lm, settings)
    asked = requests.read(lm, settings)
    prompts, n = asked.prompts, searching.rows_of(chosen.search, asked.n)
    running = asked if n == asked.n else requests.read(lm, replace(settings, n=n))
    if settings.reward != ():
        given = settings.reward
        given = given if type(given) in (list, tuple) else (given,)
        chosen = replace(chosen, rewards=tuple(given))
    if settings.jump_forward:
        chosen = requests.jumping(chosen)
    if asked.transforms:
        chosen = replace(chosen, transforms=(*chosen.transforms, *asked.transforms))
    streams = {
        name: requests.stream_prompts(name, stream, prompts, n)
        for name, stream in (settings.streams or {}).items()
    }
    ends = running.ends[::n]
    parts = compose.compose(
        *(chosen, lm, asked.temperature, drafts, streams),
        stop=[end.strings for end in ends],
        stop_token_ids=[end.tokens for end in ends],
        width=choice.default() if settings.width is None else settings.width,
    )
    params = compose.params(lm, drafts, streams)
    size = initial_state.bucket(max(asked.limits))
    return _Ready(lm, asked, running, parts, params, engines.engine(parts), size)


def _start(lm: Any, settings: requests.Settings, streamed: bool = False) -> Call:
    """Compose the method, measure its rounds if need be, and prefill the caches."""
    lm, asked, running, parts, params, engine, size = _composed(lm, settings)
    searching.check(lm, parts.program, asked, streamed)
    keys = engines.request_keys(settings.seed, running.prompts, running.n)
    compiled = engine.compile_seconds
    costs = tuning.costs_of(engine, params, parts, len(running.rows), size)
    # Of what was measured above only the compilation belongs to the call.
    begun = time.perf_counter() - (engine.compile_seconds - compiled)
    chunk, sizes = settings.prefill_chunk or 0, (0, 0)
    if parts.program.select is not None:
        sizes = searching.scratch(lm, parts.program, searching.longest(running))
    rows = (running.rows, running.limits, keys, size, settings.memory, not sizes[0])
    load = None
    if settings.prefixes is not None:
        about = (lm, parts, params, running.rows, engine)
        load = prefix_loading.Loading(settings.prefixes, *about)
    beside: dict[str, Any] = {"chunk": chunk, "scratch": sizes[0], "load": load}
    beside |= {"contexts": running.contexts, "whole": True}
    beside |= {"suffixes": running.suffixes}
    state = engine.start(params, parts, *rows, **beside)
    state = tuning.begun(parts, state, costs)
    rest = (params, engine, state, begun, compiled, sizes, engine.memory(state), load)
    return Call(lm, settings, asked, running, parts, *rest)
