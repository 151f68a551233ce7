"""The finished rows of a call as lists on the host."""

from typing import Any, NamedTuple

import numpy as np

from decoding.serving import requests, scoring
from models.errors import PromptError


class Rows(NamedTuple):
    """What an output is read from, of the finished rows of any loop, on the host."""

    tokens: Any  # int32[B, T]
    origin: Any  # int8[B, T]
    logprobs: Any  # float32[B, T]
    length: Any  # int32[B]
    counters: Any
    order: Any = None  # int32[B, T], of canvases


class Text(NamedTuple):
    """One text, as `Output` has it."""

    tokens: list[int]
    text: str | None  # None without a tokenizer
    logprobs: list[float | None]
    origin: list[int | None]
    finish_reason: str
    top_logprobs: list  # for each token, (token, log-probability) best first, or None
    prompt_logprobs: list[float | None]  # empty without scores
    order: list[int | None]  # empty but of canvases


def check_pool(state: Any) -> None:
    """Raise PromptError if a cache's pool of pages was too small."""
    if any(bool(cache.overrun) for cache in state.caches.values()):
        raise PromptError(
            "a cache's pool of pages was too small, so that texts would be wrong: make "
            "the pool larger, or decode fewer prompts at a time"
        )


def of_rows(
    lm: Any,
    settings: requests.Settings,
    asked: requests.Requests,
    state: Rows,
    scores: scoring.Scores | None,
) -> list[Text]:
    """Read the texts of all rows.

    Args:
        lm: the model, whose tokenizer gives the texts.
        settings: those of the call.
        asked: its requests.
        state: the finished rows.
        scores: of all rows, or None.
    """
    ends = np.asarray(state.length)
    buffers = [np.asarray(x) for x in (state.tokens, state.logprobs, state.origin)]
    texts = []
    for i, (prompt, row_ends) in enumerate(zip(asked.rows, asked.ends)):
        new = slice(len(prompt), int(ends[i]))
        tokens, logprobs, origin = (buffer[i, new].tolist() for buffer in buffers)
        reason = requests.finish_reason(lm, tokens, row_ends)
        text = None
        if lm.tokenizer is not None:
            text = requests.text_of(
                lm, tokens, row_ends, prompt if settings.echo else ()
            )
        best, before = _scores(scores, i, new)
        order = [] if state.order is None else np.asarray(state.order)[i, new].tolist()
        if settings.echo:
            written = settings.prompts[i // asked.n]
            if text is not None:
                spelt = written if type(written) is str else lm.tokenizer.decode(prompt)
                text = spelt + text
            none = [None] * len(prompt)
            tokens, origin, best = prompt + tokens, none + origin, none + best
            order = none + order
            logprobs = (before if settings.prompt_logprobs else none) + logprobs
        found = (tokens, text, logprobs, origin, reason, best, before, order)
        texts.append(Text(*found))
    return texts


def _scores(scores: scoring.Scores | None, i: int, new: slice) -> tuple[list, list]:
    """Return the alternatives of row `i`'s new tokens, and the prompt's own scores."""
    if scores is None:
        return [], []
    pairs = zip(scores.best_tokens[i, new].tolist(), scores.best_logprobs[i, new])
    best = [list(zip(ids, values.tolist())) for ids, values in pairs]
    return best, [None, *scores.logprobs[i, 1 : new.start].tolist()]
