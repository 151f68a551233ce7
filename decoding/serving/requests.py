"""The prompts and settings of a call, checked before anything is compiled."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

import models
from decoding import base, recipes
from decoding.automata import stop_strings
from decoding.catalogue import PerPrompt, Spec
from decoding.method import Method
from decoding.serving import constraining
from models.errors import MethodError, PromptError
from models.heads.formats import native
from models.surgery import lora

# Keyword of `generate` -> the transform, its argument and the value that changes
# nothing, in the order of HF's.
SAMPLING: dict[str, tuple[str, str, float]] = {
    "repetition_penalty": ("transforms/repetition_penalty", "penalty", 1.0),
    "top_k": ("transforms/top_k", "k", 2**31 - 1),
    "top_p": ("transforms/top_p", "p", 1.0),
    "min_p": ("transforms/min_p", "p", 0.0),
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The arguments of `generate`, which documents them, but the model and the loop."""

    prompts: Sequence[Any]
    method: Any = None
    max_new_tokens: Any = 128
    temperature: Any = 0.0
    transforms: Sequence[Any] = ()
    n: int = 1
    seed: Any = 0
    stop: Any = None
    drafts: Mapping[str, Any] | None = None
    memory: Any = None
    streams: base.Streams | None = None
    reward: Any = ()
    top_k: Any = None
    top_p: Any = None
    min_p: Any = None
    repetition_penalty: Any = None
    stop_token_ids: Any = None
    top_logprobs: int = 0
    prompt_logprobs: bool = False
    echo: bool = False
    width: Any = None
    prefill_chunk: int | None = None
    contexts: Sequence[Any] | None = None
    prefixes: Any = None
    constraint: Any = None
    finish: bool = False
    engine: str = "auto"
    jump_forward: bool = False
    suffix: Any = None


class Ends(NamedTuple):
    """The strings and tokens that end a text, beside EOS."""

    strings: tuple[str, ...] = ()
    tokens: tuple[int, ...] = ()


class Requests(NamedTuple):
    """Prompts as token lists, `n` rows each, and where their texts end."""

    rows: list[list[int]]  # n in a row for each prompt
    limits: list[int]  # prompt included, of each row
    prompts: int
    n: int
    ends: list[Ends]  # of each row
    temperature: Any  # one number, or a list of one a prompt
    transforms: tuple[Any, ...]  # those of `transforms`, then those of the keywords
    contexts: list[int] | None = None  # tokens of each row's context
    constraints: constraining.Constraints | None = None  # one a prompt
    suffixes: list[list[int]] | None = None  # of each row


@functools.lru_cache(2)
def named(name: str) -> models.Loaded:
    """Load a model by name or folder; the last two are kept."""
    return models.load(name)


def chosen(lm: Any, method: str | Method | None) -> Method:
    """Resolve a method: None is that of the model's heads, or plain decoding."""
    heads = getattr(lm, "heads", None)
    if method is None and heads is not None:
        return Method.from_config(native.method(heads.folder))
    if method is None or type(method) is str:
        return recipes.method(method or "plain")
    assert isinstance(method, Method)
    return method


def with_heads(
    lm: Any, method: str | Method | None, drafts: Mapping[str, Any] | None
) -> tuple[Any, Any, Mapping[str, Any] | None]:
    """Resolve the method; a model that was loaded with heads brings them."""
    heads, method = getattr(lm, "heads", None), chosen(lm, method)
    if heads is not None and "heads" in method.needs and "heads" not in (drafts or {}):
        lm, params = lora.model(lm, heads.params)
        drafts = {**(drafts or {}), "heads": params}
    return lm, method, drafts


def jumping(method: Method) -> Method:
    """Return the method that drafts a grammar's forced text beside its own drafts.

    Raises:
        MethodError: a search, whose texts are not drafted row by row.
    """
    if method.search is not None:
        raise MethodError(
            f"jump_forward=True with {method.search.name}, which is no drafter's text: "
            "leave one of them out"
        )
    inner = {} if method.drafter is None else {"inner": method.drafter}
    return replace(method, drafter=Spec("drafters/forced", **inner))


def read(lm: Any, settings: Settings) -> Requests:
    """Encode prompts and check every setting that needs no method.

    Raises:
        PromptError: an empty or over-long prompt, an unknown token, or a number of
            settings that is not that of the prompts.
        MethodError: a number that a sampling keyword's transform refuses.
    """
    tokens, n = encode(lm, settings.prompts), settings.n
    tokens, contexts = with_contexts(lm, settings.contexts, tokens)
    behind = suffixes(lm, settings.suffix, len(tokens))
    prompts, config = len(tokens), lm.model.config
    new = per_prompt("max_new_tokens", settings.max_new_tokens, prompts)
    for i, prompt in enumerate(tokens):
        _check(config, i, prompt, new[i], behind[i] if behind else [])
    if n < 1:
        raise PromptError(f"n={n}: use at least 1")
    chunk = settings.prefill_chunk
    if chunk is not None and (type(chunk) is not int or chunk < 1):
        raise PromptError(f"prefill_chunk={chunk!r}: use at least 1, or None")
    best = settings.top_logprobs
    if not (isinstance(best, int) and 0 <= best <= config.vocab_size):
        raise PromptError(
            f"top_logprobs={best!r}: use 0 to {config.vocab_size}, the size of the "
            "vocabulary"
        )
    strings = lists("stop", settings.stop, str, prompts)
    ids = lists("stop_token_ids", settings.stop_token_ids, int, prompts)
    for i, row in enumerate(ids):
        wrong = [t for t in row if not 0 <= t < config.vocab_size]
        if wrong:
            raise PromptError(
                f"stop_token_ids of prompt {i} has token {wrong[0]}, outside the "
                f"vocabulary of {config.vocab_size}: give ids of this model's tokenizer"
            )
    temperature = settings.temperature
    if np.ndim(temperature):
        temperature = per_prompt("temperature", temperature, prompts)
    for part in settings.transforms:
        if type(part) in (list, tuple, PerPrompt):
            one_each = getattr(part, "parts", part)
            per_prompt("a list in transforms", one_each, prompts)
    keywords = {name: getattr(settings, name) for name in SAMPLING}
    transforms = (*settings.transforms, *sampling(prompts, **keywords))
    wish = (settings.constraint, prompts, settings.engine, settings.finish)
    constraints = constraining.read(lm, *wish)
    if constraints is not None:
        ending = new if settings.finish else [0] * prompts
        transforms = constraining.inserted(transforms, constraints, ending)
    ends = [Ends(*pair) for pair in zip(strings, ids) for _ in range(n)]
    rows = [prompt for prompt in tokens for _ in range(n)]
    after = [len(text) for text in behind] if behind else [0] * prompts
    sizes = zip(tokens, new, after)
    limits = [len(p) + m + s for p, m, s in sizes for _ in range(n)]
    texts = behind and [text for text in behind for _ in range(n)]
    read = contexts and [size for size in contexts for _ in range(n)]
    numbers = (rows, limits, prompts, n, ends, temperature)
    return Requests(*numbers, transforms, read, constraints, texts)


def with_contexts(
    lm: Any, contexts: Sequence[Any] | None, prompts: list[list[int]]
) -> tuple[list[list[int]], list[int] | None]:
    """Put the contexts' tokens before the prompts'; return their numbers too.

    Raises:
        PromptError: not one context a prompt, or none of any tokens.
    """
    if contexts is None:
        return prompts, None
    before = encode(lm, contexts)
    if len(before) != len(prompts):
        raise PromptError(
            f"{len(before)} contexts for {len(prompts)} prompts: give one a prompt"
        )
    return [a + b for a, b in zip(before, prompts)], [len(tokens) for tokens in before]


def per_prompt(name: str, value: Any, prompts: int) -> list[Any]:
    """Return one value per prompt: `value` itself, or its entries."""
    if not np.ndim(value):
        return [value] * prompts
    if len(value) != prompts:
        raise PromptError(
            f"{name} has {len(value)} entries for {prompts} prompts: give one number, "
            "or one a prompt"
        )
    return list(value)


def lists(name: str, value: Any, kind: type, prompts: int) -> list[tuple]:
    """Return one list per prompt.

    Args:
        name: of the setting, for errors.
        value: None, an entry, a list of entries for all prompts, or a list with one
            entry, list of entries or None a prompt, and at least one list or None.
        kind: str or int, the entries' type.
        prompts: number of prompts.
    """
    of_kind = str if kind is str else (int, np.integer)

    def is_single(entry: Any) -> bool:
        return isinstance(entry, of_kind) or not hasattr(entry, "__iter__")

    def row(entry: Any) -> tuple:
        values = () if entry is None else (entry,) if is_single(entry) else entry
        wrong = [x for x in values if not isinstance(x, of_kind)]
        if wrong:
            raise PromptError(
                f"{name} has {wrong[0]!r}: give {kind.__name__} values, one list for "
                "all prompts or one a prompt"
            )
        return tuple(kind(x) for x in values)

    if is_single(value) or not any(x is None or np.ndim(x) for x in value):
        return [row(value)] * prompts
    if len(value) != prompts:
        raise PromptError(
            f"{name} has lists for {len(value)} of {prompts} prompts: give one list "
            "for all, or one a prompt (None: nothing)"
        )
    return [row(entry) for entry in value]


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


def suffixes(lm: Any, suffix: Any, prompts: int) -> list[list[int]] | None:
    """Encode the text behind each canvas: one for all prompts, or one a prompt.

    Raises:
        PromptError: another number of texts.
    """
    if suffix is None:
        return None
    texts: Sequence[Any] = [suffix] * prompts if type(suffix) is str else suffix
    if len(texts) != prompts:
        raise PromptError(
            f"{len(texts)} suffixes for {prompts} prompts: give one for all, or one a "
            "prompt"
        )
    return encode(lm, texts)


def _check(config: Any, i: int, prompt: list[int], new: int, suffix: list[int]) -> None:
    if new < 1:
        raise PromptError(f"max_new_tokens={new}: use at least 1")
    if not prompt:
        raise PromptError(
            f"prompt {i} is empty: a text needs at least one token to start from"
        )
    wrong = [t for t in (*prompt, *suffix) if not 0 <= t < config.vocab_size]
    if wrong:
        raise PromptError(
            f"prompt {i} has token {wrong[0]}, outside the vocabulary of "
            f"{config.vocab_size}: encode it with this model's tokenizer"
        )
    size = len(prompt) + len(suffix)
    if size + new > config.max_positions:
        raise PromptError(
            f"prompt {i} has {size} tokens and max_new_tokens={new}: together "
            f"more than the model's {config.max_positions} positions; shorten one "
            "(prompts are never cut silently)"
        )


def sampling(prompts: int = 1, **keywords: Any) -> list[Spec | PerPrompt]:
    """Return the transforms of the sampling keywords that are not None.

    None in a list leaves that prompt as it is.
    """
    parts: list[Spec | PerPrompt] = []
    for keyword, (name, argument, neutral) in SAMPLING.items():
        value = keywords.get(keyword)
        if value is None:
            continue
        if not np.ndim(value):
            parts.append(Spec(name, **{argument: value}))
            continue
        values = per_prompt(keyword, value, prompts)
        numbers = [neutral if number is None else number for number in values]
        specs = [Spec(name, **{argument: number}) for number in numbers]
        parts.append(PerPrompt(tuple(specs)))
    return parts


def stream_prompts(
    name: str, stream: base.Stream | base.Derived, prompts: int, n: int
) -> base.Stream | base.Derived:
    """Repeat the prompts that a stream has of its own `n` times, one per row."""
    if isinstance(stream, base.Derived) or stream.prompts is None:
        return stream
    texts = [[int(t) for t in prompt] for prompt in stream.prompts]
    if len(texts) != prompts or not all(texts):
        raise PromptError(
            f"stream {name!r} has {len(texts)} prompts, the shortest of "
            f"{min(map(len, texts), default=0)} tokens, beside {prompts} prompts of "
            "the target: give the stream one non-empty prompt for each"
        )
    return stream._replace(prompts=[p for p in texts for _ in range(n)])


NOWHERE = Ends()


def text_of(
    lm: Any,
    tokens: Sequence[int],
    ends: Ends = NOWHERE,
    prompt: Sequence[int] = (),
) -> str:
    """Decode `tokens` without those that end a text; cut it at its stop string.

    With a `prompt` the text is what follows the prompt's: some tokenizers drop the
    space before the first token.
    """
    left_out = {*lm.model.config.eos, *ends.tokens}
    shown = [t for t in tokens if t not in left_out]
    before = lm.tokenizer.decode([*prompt]) if prompt else ""
    whole = lm.tokenizer.decode([*prompt, *shown])
    # A character whose bytes lie on both sides of the border is decoded by itself.
    joins = whole.startswith(before)
    text = whole[len(before) :] if joins else lm.tokenizer.decode(shown)
    data = text.encode("utf-8")
    at = stop_strings.cut(ends.strings, data)
    return text if at is None else data[:at].decode("utf-8", errors="ignore")


def finish_reason(lm: Any, tokens: Sequence[int], ends: Ends) -> str:
    """Return why a text ended: "eos", "stop" (a stop string or token) or "length"."""
    if tokens and tokens[-1] in lm.model.config.eos:
        return "eos"
    if tokens and tokens[-1] in ends.tokens:
        return "stop"
    if ends.strings:
        text = lm.tokenizer.decode([*tokens])
        if stop_strings.cut(ends.strings, text.encode("utf-8")) is not None:
            return "stop"
    return "length"
