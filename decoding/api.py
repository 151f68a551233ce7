"""`generate`: prompts in, texts out, on any model and method."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from decoding import base, compose, recipes, state_sharding, stats
from decoding.automata import stop_strings
from decoding.catalogue import Spec
from decoding.loops import engines, initial_state
from decoding.method import Method
from models.errors import PromptError


@dataclass(frozen=True)
class Output:
    """The generated texts: one entry per prompt, or a list of `n` entries if `n > 1`.

    Prompts are not repeated. An EOS that ended a text is its last token. `texts` is
    None without a tokenizer; it is cut where a stop string begins. `origin` gives each
    token's depth as an accepted draft, 0 for the target's own tokens. `memory` is the
    drafter's state to pass to the next call. `exits` holds the exit's counts, such as
    SpecEE's tokens by the layers that they ran.
    """

    tokens: list
    texts: list | None
    logprobs: list  # log-probability of each token under the raw target
    origin: list
    memory: Any
    exits: Any
    stats: stats.Stats
    guarantee: str


def generate(
    lm: Any,
    prompts: Sequence[str] | Sequence[Sequence[int]],
    method: str | Method = "plain",
    max_new_tokens: int = 128,
    temperature: float = 0.0,
    transforms: Sequence[Spec] = (),
    n: int = 1,
    seed: int | Sequence[int] = 0,
    stop: str | Sequence[str] | None = None,
    drafts: Mapping[str, Any] | None = None,
    memory: Any = None,
    streams: Mapping[str, base.Stream] | None = None,
    loop: engines.Loop | None = None,
) -> Output:
    """Decode every prompt in one batch.

    Args:
        lm: the model that `models.load` returns.
        prompts: texts, or token lists of any lengths.
        method: a name or path that `recipes.config` resolves, or a `Method`.
        max_new_tokens: tokens per text at most.
        temperature: 0 decodes greedily.
        transforms: applied after the method's own, warpers after the temperature.
        n: samples per prompt; sample 0 is the text of `n=1`.
        seed: one number, or one a prompt.
        stop: a string or strings that end a text.
        drafts: `{"draft": lm2}` for a draft model, `{"heads": params}` for heads.
        memory: `out.memory` of an earlier call with the same method.
        streams: other models run on the same tokens, for transforms that read them.
        loop: `loop(step, state) -> state` runs the rounds on the host, to stream or
            record them; `step(state) -> (state, outcome)`. None: on the device.

    Returns:
        The texts, their tokens and log-probabilities, and the run's statistics.

    Raises:
        PromptError: an empty, too long or out-of-range prompt, or a request that
            cannot be served (a paged cache's pool is too small for it).
        MethodError: an unknown method, or parts that do not fit together.
    """
    chosen: Any = recipes.method(method) if type(method) is str else method
    if transforms:
        every = (*chosen.transforms, *transforms)
        chosen = replace(chosen, transforms=every)
    stops = () if stop is None else (stop,) if type(stop) is str else tuple(stop)
    ids = encode(lm, prompts)
    _check(lm, ids, max_new_tokens, n)
    rows = [p for p in ids for _ in range(n)]
    streams = {s: _own_prompts(s, v, len(ids), n) for s, v in (streams or {}).items()}
    parts = compose.compose(chosen, lm, temperature, drafts, streams, stops)
    limits = [len(p) + max_new_tokens for p in rows]
    keys = engines.request_keys(seed, len(ids), n)
    params = compose.params(lm, drafts, streams)
    engine = engines.engine(parts)
    compiled, begun = engine.compile_seconds, time.perf_counter()
    size = initial_state.bucket(max(limits))
    state = engine.start(params, parts, rows, limits, keys, size, memory, share=True)
    if loop is None:
        state = engine.advance(params, state)
    else:
        state = loop(lambda s: engine.step(params, s), state)
    state = jax.block_until_ready(state)
    if any(bool(cache.overrun) for cache in state.caches.values()):
        raise PromptError(
            "a cache's pool of pages was too small, so that texts would be wrong: make "
            "the pool larger, or decode fewer prompts at a time"
        )
    compiled = engine.compile_seconds - compiled
    seconds = time.perf_counter() - begun - compiled
    state = replace(state, **state_sharding.results(state))
    figures = stats.summarise(state.counters, seconds, compiled)
    return _output(lm, state, rows, n, stops, figures, parts.guarantee)


def _own_prompts(name: str, stream: base.Stream, count: int, n: int) -> base.Stream:
    """Repeat the stream's own prompts `n` times, one per row."""
    if stream.prompts is None:
        return stream
    texts = [[int(t) for t in prompt] for prompt in stream.prompts]
    if len(texts) != count or not all(texts):
        raise PromptError(
            f"stream {name!r} has {len(texts)} prompts, the shortest of "
            f"{min(map(len, texts), default=0)} tokens, beside {count} prompts of the "
            "target: give the stream one non-empty prompt for each"
        )
    return stream._replace(prompts=[p for p in texts for _ in range(n)])


def encode(lm: Any, prompts: Sequence) -> list[list[int]]:
    """Encode prompts as token lists.

    Raises:
        PromptError: no prompts, or a text and a model without a tokenizer.
    """
    if type(prompts) is str:
        raise PromptError(f"prompts={prompts[:40]!r} is one text: pass [text]")
    if not len(prompts):
        raise PromptError("prompts is empty: pass at least one prompt")
    ids = []
    for i, prompt in enumerate(prompts):
        if type(prompt) is str:
            if lm.tokenizer is None:
                raise PromptError(
                    f"prompt {i} is a text and the model has no tokenizer.json: pass "
                    "token lists"
                )
            ids.append(list(lm.tokenizer.encode(prompt)))
        else:
            ids.append([int(t) for t in prompt])
    return ids


def _check(lm: Any, ids: list[list[int]], new: int, n: int) -> None:
    if new < 1:
        raise PromptError(f"max_new_tokens={new}: use at least 1")
    if n < 1:
        raise PromptError(f"n={n}: use at least 1")
    config = lm.model.config
    for i, prompt in enumerate(ids):
        if not prompt:
            raise PromptError(
                f"prompt {i} is empty: a text needs at least one token to start from"
            )
        wrong = [t for t in prompt if not 0 <= t < config.vocab_size]
        if wrong:
            raise PromptError(
                f"prompt {i} has token {wrong[0]}, outside the vocabulary of "
                f"{config.vocab_size}: encode it with this model's tokenizer"
            )
        if len(prompt) + new > config.max_positions:
            raise PromptError(
                f"prompt {i} has {len(prompt)} tokens and max_new_tokens={new}: "
                f"together more than the model's {config.max_positions} positions; "
                "shorten one (prompts are never cut silently)"
            )


def _output(lm, state, rows, n, stops, figures, guarantee) -> Output:
    ends = np.asarray(state.length)
    buffers = [np.asarray(x) for x in (state.tokens, state.logprobs, state.origin)]
    spans = [(len(p), e) for p, e in zip(rows, ends)]
    columns = [
        [list(b[i, s:e].tolist()) for i, (s, e) in enumerate(spans)] for b in buffers
    ]
    tokens, logprobs, origin = columns
    texts = None
    if lm.tokenizer is not None:
        texts = [text_of(lm, t, stops) for t in tokens]

    def group(flat: list) -> list:
        if n == 1:
            return flat
        return [flat[i : i + n] for i in range(0, len(flat), n)]

    return Output(
        group(tokens),
        None if texts is None else group(texts),
        group(logprobs),
        group(origin),
        state.drafter.shared,
        state.exit.shared,
        figures,
        guarantee,
    )


def text_of(lm: Any, tokens: list[int], stops: Sequence[str] = ()) -> str:
    """Decode `tokens` without EOS, and cut the text where its stop string begins."""
    text = lm.tokenizer.decode([t for t in tokens if t not in lm.model.config.eos])
    data = text.encode("utf-8")
    at = stop_strings.cut(stops, data)
    return text if at is None else data[:at].decode("utf-8", errors="ignore")
