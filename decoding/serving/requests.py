"""The prompts and settings of a call, checked before anything is compiled."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import models
from decoding import base
from decoding.automata import stop_strings
from decoding.catalogue import Spec
from models.errors import PromptError

# Keyword of `generate` -> the transform and its argument, in the order of HF's.
SAMPLING = {
    "repetition_penalty": ("transforms/repetition_penalty", "penalty"),
    "top_k": ("transforms/top_k", "k"),
    "top_p": ("transforms/top_p", "p"),
    "min_p": ("transforms/min_p", "p"),
}


class Requests(NamedTuple):
    """Prompts as token lists, `n` rows each, and the lengths at which rows end."""

    rows: list[list[int]]  # n in a row for each prompt
    limits: list[int]  # prompt included
    prompts: int
    n: int
    stops: tuple[str, ...]


@functools.lru_cache(2)
def named(name: str) -> models.Loaded:
    """Load a model by name or folder; the last two are kept."""
    return models.load(name)


def read(
    lm: Any,
    prompts: Sequence[Any],
    max_new_tokens: int | Sequence[int],
    n: int,
    stop: str | Sequence[str] | None,
) -> Requests:
    """Encode prompts and check them against the model.

    Args:
        prompts: texts, token lists, or conversations (lists of dicts with `role` and
            `content`).
        max_new_tokens: one number, or one a prompt.

    Raises:
        PromptError: an empty or over-long prompt, an unknown token, or a number of
            settings that is not that of the prompts.
    """
    tokens = encode(lm, prompts)
    new = per_prompt("max_new_tokens", max_new_tokens, len(tokens))
    for i, prompt in enumerate(tokens):
        _check(lm.model.config, i, prompt, new[i])
    if n < 1:
        raise PromptError(f"n={n}: use at least 1")
    stops = () if stop is None else (stop,) if type(stop) is str else tuple(stop)
    rows = [prompt for prompt in tokens for _ in range(n)]
    limits = [len(p) + m for p, m in zip(tokens, new) for _ in range(n)]
    return Requests(rows, limits, len(tokens), n, stops)


def per_prompt(name: str, value: Any, prompts: int) -> list[Any]:
    """Return one value per prompt: `value` itself, or its entries."""
    if not hasattr(value, "__len__"):
        return [value] * prompts
    if len(value) != prompts:
        raise PromptError(
            f"{name} has {len(value)} entries for {prompts} prompts: give one number, "
            "or one a prompt"
        )
    return list(value)


def encode(lm: Any, prompts: Sequence[Any]) -> list[list[int]]:
    """Encode prompts as token lists.

    Raises:
        PromptError: no prompts, a text or a conversation and a model without a
            tokenizer, or a conversation that the chat template refuses.
    """
    if type(prompts) is str:
        raise PromptError(f"prompts={prompts[:40]!r} is one text: pass [text]")
    if not len(prompts):
        raise PromptError("prompts is empty: pass at least one prompt")
    if isinstance(prompts[0], Mapping):
        raise PromptError("prompts is one conversation: pass [messages]")
    return [_encoded(lm, i, prompt) for i, prompt in enumerate(prompts)]


def _encoded(lm: Any, i: int, prompt: Any) -> list[int]:
    if type(prompt) is not str and len(prompt) and isinstance(prompt[0], Mapping):
        return list(lm.chat(prompt))
    if type(prompt) is not str:
        return [int(t) for t in prompt]
    if lm.tokenizer is None:
        raise PromptError(
            f"prompt {i} is a text and the model has no tokenizer.json: pass token "
            "lists"
        )
    return list(lm.tokenizer.encode(prompt))


def _check(config: Any, i: int, prompt: list[int], new: int) -> None:
    if new < 1:
        raise PromptError(f"max_new_tokens={new}: use at least 1")
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
            f"prompt {i} has {len(prompt)} tokens and max_new_tokens={new}: together "
            f"more than the model's {config.max_positions} positions; shorten one "
            "(prompts are never cut silently)"
        )


def sampling(**values: float | None) -> list[Spec]:
    """Return the transforms of the sampling keywords that are not None."""
    specs = []
    for keyword, (name, argument) in SAMPLING.items():
        if (value := values.get(keyword)) is not None:
            specs.append(Spec(name, **{argument: value}))
    return specs


def stream_prompts(name: str, stream: base.Stream, prompts: int, n: int) -> base.Stream:
    """Repeat the stream's own prompts `n` times, one per row."""
    if stream.prompts is None:
        return stream
    texts = [[int(t) for t in prompt] for prompt in stream.prompts]
    if len(texts) != prompts or not all(texts):
        raise PromptError(
            f"stream {name!r} has {len(texts)} prompts, the shortest of "
            f"{min(map(len, texts), default=0)} tokens, beside {prompts} prompts of "
            "the target: give the stream one non-empty prompt for each"
        )
    return stream._replace(prompts=[p for p in texts for _ in range(n)])


def text_of(lm: Any, tokens: Sequence[int], stops: Sequence[str] = ()) -> str:
    """Decode `tokens` without EOS, and cut the text where its stop string begins."""
    text = lm.tokenizer.decode([t for t in tokens if t not in lm.model.config.eos])
    data = text.encode("utf-8")
    at = stop_strings.cut(stops, data)
    return text if at is None else data[:at].decode("utf-8", errors="ignore")


def undecided(text: str, stops: Sequence[str]) -> int:
    """Count the last characters of `text` that may become part of a stop string."""
    longest = max((len(stop) - 1 for stop in stops), default=0)
    for size in range(min(longest, len(text)), 0, -1):
        if any(stop.startswith(text[-size:]) for stop in stops):
            return size
    return 0


def finish_reason(lm: Any, tokens: Sequence[int], stops: Sequence[str]) -> str:
    """Return why a text ended: "eos", "stop" (a stop string) or "length"."""
    if tokens and tokens[-1] in lm.model.config.eos:
        return "eos"
    if stops:
        text = lm.tokenizer.decode([*tokens])
        if stop_strings.cut(stops, text.encode("utf-8")) is not None:
            return "stop"
    return "length"
