"""What a diffusion model writes: spans between two given sides, and its repetitions."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

import decoding
from decoding.loops import stats


class Infilling(NamedTuple):
    """Spans of held-out text, decoded greedily one token a forward."""

    matched: float  # share of the tokens that are right in their place
    exact: float  # share of the spans that are right
    ahead: float  # `matched` of the other model, which sees what stands before alone
    cases: int
    span: int


def infilling(
    lm: Any, windows: Sequence[np.ndarray], span: int = 8, other: Any = None
) -> Infilling:
    """Decode the `span` tokens in the middle of each window, both sides given.

    Args:
        lm: a diffusion model.
        windows: int32[L] each, held-out text.
        span: tokens to decode.
        other: an autoregressive model of the same tokenizer, which continues the left
            side alone; None: `ahead` is 0.
    """
    begin = (len(windows[0]) - span) // 2
    left = [window[:begin].tolist() for window in windows]
    right = [window[begin + span :].tolist() for window in windows]
    wanted = np.stack([window[begin : begin + span] for window in windows])
    out = decoding.generate(lm, left, method="plain", max_new_tokens=span, suffix=right)
    same = _padded(out.tokens, span) == wanted
    ahead = 0.0
    if other is not None:
        texts = decoding.generate(other, left, method="plain", max_new_tokens=span)
        ahead = float((_padded(texts.tokens, span) == wanted).mean())
    matched, exact = float(same.mean()), float(same.all(1).mean())
    return Infilling(matched, exact, ahead, len(windows), span)


def repetition(
    lm: Any, windows: Sequence[np.ndarray], prompt: int = 32, new: int = 64
) -> float:
    """Return the share of greedy texts inside one exact repetition.

    Texts of `new` tokens, one token a forward, follow the first `prompt` tokens of each
    window.
    """
    prompts = [window[:prompt].tolist() for window in windows]
    out = decoding.generate(lm, prompts, method="plain", max_new_tokens=new)
    return float(np.mean([stats.loop_share(list(text)) for text in out.tokens]))


def _padded(texts: Sequence[Sequence[int]], size: int) -> np.ndarray:
    """Return int[n, size], -1 behind a text's end."""
    out = np.full((len(texts), size), -1)
    for row, text in zip(out, texts):
        row[: len(text)] = text[:size]
    return out
