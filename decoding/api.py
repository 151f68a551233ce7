"""`generate` and `stream`: prompts in, texts out, on any model and method."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import numpy as np

from decoding import base, compose, recipes
from decoding.catalogue import Part
from decoding.loops import decode, engines, initial_state, state_sharding, stats
from decoding.method import Method
from decoding.serving import requests
from models.errors import PromptError
from models.heads.formats import native
from models.surgery import lora


@dataclass(frozen=True, repr=False)
class Output:
    """The generated texts: one entry per prompt, or a list of `n` entries if `n > 1`.

    Prompts are not repeated. An EOS that ended a text is its last token.
    """

    tokens: list  # lists of int
    texts: list | None  # cut where a stop string begins; None without a tokenizer
    logprobs: list  # log-probability of each token under the raw target
    origin: list  # each token's depth as an accepted draft; 0: the target's own token
    finish_reason: list  # "eos", "stop" (a stop string) or "length"
    memory: Any  # the drafter's state, for the next call
    exits: Any  # the exit's counts, such as SpecEE's tokens by the layers that they ran
    stats: stats.Stats
    guarantee: str  # "LAW", "ARGMAX" or "LOSSY"

    def __repr__(self) -> str:
        new = int(self.stats.new_tokens.sum())
        return (
            f"Output({len(self.tokens)} prompts, {new} tokens, "
            f"{self.stats.tokens_per_call:.2f} a call, {self.guarantee})"
        )


class Piece(NamedTuple):
    """The text that a row gained since its last piece."""

    prompt: int  # index in `prompts`
    sample: int  # 0 .. n - 1
    text: str  # whole characters, nothing of a stop string; "" without a tokenizer
    tokens: list[int]
    finish_reason: str | None  # None until the row's last piece


class _Call(NamedTuple):
    """A call that is ready to run."""

    lm: Any
    requests: requests.Requests
    parts: compose.Composition
    params: base.Params
    engine: engines.Engine
    state: decode.DecodeState
    begun: float
    compiled: float  # seconds of compilation that the engine had before


def generate(
    lm: Any,
    prompts: Sequence[Any],
    method: str | Method | None = None,
    max_new_tokens: int | Sequence[int] = 128,
    temperature: float = 0.0,
    transforms: Sequence[Part] = (),
    n: int = 1,
    seed: int | Sequence[int] = 0,
    stop: str | Sequence[str] | None = None,
    drafts: Mapping[str, Any] | None = None,
    memory: Any = None,
    streams: Mapping[str, base.Stream] | None = None,
    loop: engines.Loop | None = None,
    *,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float | None = None,
) -> Output:
    """Decode every prompt in one batch.

    Args:
        lm: the model that `models.load` returns, or the name that it takes.
        prompts: texts, token lists of any lengths, or conversations: lists of messages,
            dicts with `role` and `content`.
        method: a name or path that `recipes.config` resolves, or a `Method`. None: the
            method of the model's heads, or plain decoding without heads.
        max_new_tokens: tokens per text at most; one number, or one a prompt.
        temperature: 0 decodes greedily.
        transforms: applied after the method's own, warpers after the temperature. Each
            is a `Spec`, a built `LogitsTransform`, or a function of logits float32[V],
            tokens int32[T] and length int32[] that returns logits.
        n: samples per prompt; sample 0 is the text of `n=1`.
        seed: one number, or one a prompt.
        stop: a string or strings that end a text.
        drafts: `{"draft": lm2}` for a draft model, `{"heads": params}` for heads; the
            names are those of `base.Params`.
        memory: `out.memory` of an earlier call with the same method.
        streams: other models run on the same tokens, for transforms that read them.
        loop: `loop(step, state) -> state` runs the rounds on the host, to stream or
            record them; `step(state) -> (state, outcome)`. None: on the device.
        top_k: keep the k best tokens. This and the next three are short for the
            transforms of those names, in the order of HF transformers.
        top_p: keep the nucleus of this mass.
        min_p: keep tokens at least this share as probable as the best one.
        repetition_penalty: divide (positive) or multiply the logits of seen tokens.

    Returns:
        The texts, their tokens and log-probabilities, and the run's statistics.

    Raises:
        PromptError: an empty, too long or out-of-range prompt, or a request that
            cannot be served (a paged cache's pool is too small for it).
        MethodError: an unknown method, or parts that do not fit together.
    """
    short = {"top_k": top_k, "top_p": top_p, "min_p": min_p}
    specs = requests.sampling(repetition_penalty=repetition_penalty, **short)
    every = (*transforms, *specs)
    settings = (method, max_new_tokens, temperature, every, n, seed, stop)
    call = _start(lm, prompts, *settings, drafts, memory, streams)
    if loop is None:
        state = call.engine.advance(call.params, call.state)
    else:
        state = loop(lambda s: call.engine.step(call.params, s), call.state)
    return _output(call, jax.block_until_ready(state))


def stream(
    lm: Any,
    prompts: Sequence[Any],
    method: str | Method | None = None,
    max_new_tokens: int | Sequence[int] = 128,
    temperature: float = 0.0,
    transforms: Sequence[Part] = (),
    n: int = 1,
    seed: int | Sequence[int] = 0,
    stop: str | Sequence[str] | None = None,
    drafts: Mapping[str, Any] | None = None,
    memory: Any = None,
    streams: Mapping[str, base.Stream] | None = None,
    *,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float | None = None,
) -> Iterator[Piece]:
    """Yield the texts of `generate` as they grow, round by round, all rows together.

    A row's pieces concatenate to its text in `generate`'s output, with the same
    arguments. A piece ends at a character's end; what may become a stop string is held
    back until it is decided. The host waits for every round, so this is slower than
    `generate`.

    Raises:
        PromptError, MethodError: as `generate`, before the first piece.
    """
    short = {"top_k": top_k, "top_p": top_p, "min_p": min_p}
    specs = requests.sampling(repetition_penalty=repetition_penalty, **short)
    every = (*transforms, *specs)
    settings = (method, max_new_tokens, temperature, every, n, seed, stop)
    return _pieces(_start(lm, prompts, *settings, drafts, memory, streams))


def _start(
    lm: Any,
    prompts: Sequence[Any],
    method: str | Method | None,
    max_new_tokens: int | Sequence[int],
    temperature: float,
    transforms: Sequence[Part],
    n: int,
    seed: int | Sequence[int],
    stop: str | Sequence[str] | None,
    drafts: Mapping[str, Any] | None,
    memory: Any,
    streams: Mapping[str, base.Stream] | None,
) -> _Call:
    """Check everything, compose the method and fill the caches with the prompts."""
    if type(lm) is str:
        lm = requests.named(lm)
    lm, chosen, drafts = _with_heads(lm, method, drafts)
    if transforms:
        chosen = replace(chosen, transforms=(*chosen.transforms, *transforms))
    asked = requests.read(lm, prompts, max_new_tokens, n, stop)
    streams = {
        name: requests.stream_prompts(name, stream, asked.prompts, n)
        for name, stream in (streams or {}).items()
    }
    parts = compose.compose(chosen, lm, temperature, drafts, streams, asked.stops)
    keys = engines.request_keys(seed, asked.prompts, n)
    params = compose.params(lm, drafts, streams)
    engine = engines.engine(parts)
    compiled, begun = engine.compile_seconds, time.perf_counter()
    size = initial_state.bucket(max(asked.limits))
    rows = (asked.rows, asked.limits, keys, size, memory)
    state = engine.start(params, parts, *rows, share=True)
    return _Call(lm, asked, parts, params, engine, state, begun, compiled)


def _with_heads(
    lm: Any, method: str | Method | None, drafts: Mapping[str, Any] | None
) -> tuple[Any, Any, Mapping[str, Any] | None]:
    """Resolve the method; a model that was loaded with heads brings them."""
    heads = getattr(lm, "heads", None)
    if method is None and heads is not None:
        method = Method.from_config(native.method(heads.folder))
    chosen: Any = method
    if method is None or type(method) is str:
        chosen = recipes.method(method or "plain")
    if heads is not None and "heads" in chosen.needs and "heads" not in (drafts or {}):
        lm, params = lora.model(lm, heads.params)
        drafts = {**(drafts or {}), "heads": params}
    return lm, chosen, drafts


def _check_pool(state: decode.DecodeState) -> None:
    if any(bool(cache.overrun) for cache in state.caches.values()):
        raise PromptError(
            "a cache's pool of pages was too small, so that texts would be wrong: make "
            "the pool larger, or decode fewer prompts at a time"
        )


def _pieces(call: _Call) -> Iterator[Piece]:
    """Run the rounds and yield what they commit."""
    lm, asked, state = call.lm, call.requests, call.state
    rows = [_Row(lm, len(prompt), asked.stops) for prompt in asked.rows]
    while not all(row.reason for row in rows):
        state, _ = call.engine.step(call.params, state)
        _check_pool(state)
        tokens, ends, done = jax.device_get((state.tokens, state.length, state.done))
        for i, row in enumerate(rows):
            if row.reason:
                continue
            new = tokens[i, row.end : ends[i]].tolist()
            text = row.push(new, bool(done[i]))
            if new or row.reason:
                yield Piece(i // asked.n, i % asked.n, text, new, row.reason)


class _Row:
    """The text of one row of a stream."""

    def __init__(self, lm: Any, end: int, stops: Sequence[str]):
        self.lm, self.end, self.stops = lm, end, stops
        self.decoder = None if lm.tokenizer is None else lm.tokenizer.stream()
        self.tokens: list[int] = []
        self.text, self.sent = "", 0
        self.reason: str | None = None

    def push(self, new: list[int], done: bool) -> str:
        """Read `new` tokens; return the text that is decided since the last call."""
        self.end += len(new)
        self.tokens += new
        if done:
            self.reason = requests.finish_reason(self.lm, self.tokens, self.stops)
        if self.decoder is None:
            return ""
        if done:
            self.text = requests.text_of(self.lm, self.tokens, self.stops)
            return self.text[self.sent :]
        eos = self.lm.model.config.eos
        self.text += "".join(self.decoder.push(t) for t in new if t not in eos)
        decided = len(self.text) - requests.undecided(self.text, self.stops)
        start, self.sent = self.sent, max(self.sent, decided)
        return self.text[start : self.sent]


def _output(call: _Call, state: decode.DecodeState) -> Output:
    """Read the finished state on the host."""
    _check_pool(state)
    compiled = call.engine.compile_seconds - call.compiled
    seconds = time.perf_counter() - call.begun - compiled
    state = replace(state, **state_sharding.results(state))
    figures = stats.summarise(state.counters, seconds, compiled)
    lm, asked = call.lm, call.requests
    ends = np.asarray(state.length)
    spans = [(len(p), e) for p, e in zip(asked.rows, ends)]

    def group(flat: list) -> list:
        if asked.n == 1:
            return flat
        return [flat[i : i + asked.n] for i in range(0, len(flat), asked.n)]

    tokens, logprobs, origin = (
        [np.asarray(buffer)[i, s:e].tolist() for i, (s, e) in enumerate(spans)]
        for buffer in (state.tokens, state.logprobs, state.origin)
    )
    texts = None
    if lm.tokenizer is not None:
        texts = group([requests.text_of(lm, t, asked.stops) for t in tokens])
    reasons = [requests.finish_reason(lm, t, asked.stops) for t in tokens]
    return Output(
        tokens=group(tokens),
        texts=texts,
        logprobs=group(logprobs),
        origin=group(origin),
        finish_reason=group(reasons),
        memory=state.drafter.shared,
        exits=state.exit.shared,
        stats=figures,
        guarantee=call.parts.guarantee,
    )
