"""A bound on the likelihood of held-out text under a masked diffusion model.

Nie et al., *Large Language Diffusion Models*, 2025, arXiv 2502.09992, section 2.4 and
appendix B (`get_log_likelihood.py` of the official repository). Of G tokens mask k, in
places drawn evenly, with k drawn evenly from 1..G:

    -log p(x) <= E[ G / k  sum over masked tokens of CE ]

The right side is the mean over all orders of writing the text of the sum of -log p of
each token given those written before. So it is no perplexity, and everything here is
called a bound. Under block-causal attention each block has its own k, and sees the
clean blocks before it; the sum over blocks bounds the text.

Numbers k are stratified over the draws. (The official code rounds halves to even
numbers, which makes some k more frequent; here each is equally so.)
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from models.errors import DataError
from training.objectives.language_models import masked_diffusion
from training.objectives.language_models.next_token import cross_entropy

RATES = (0.15, 0.5, 0.85)  # shares of masked tokens whose hits are measured
# Maps tokens with masks and the clean text, int32[B, L], to float32[B, L, V]. What a
# third argument of their shape marks by 1 stands behind the texts, and is not seen.
Law = Callable[..., Any]


class Bound(NamedTuple):
    """A bound on the nats of a set of windows; each window's first token is given."""

    nats_per_token: float
    bits_per_byte: float
    error: float  # standard error of the nats over windows
    tokens: int
    bytes: int
    draws: int


def law(lm: Any, block: int = 0) -> Law:
    """Return the law of a loaded model, bidirectional or with blocks of `block`."""
    config = lm.config

    @jax.jit
    def run(params: Any, tokens: Any, clean: Any, behind: Any = None) -> Any:
        beside = {"clean": clean, "block": block, "most": block} if block else {}
        about = (config, params, tokens)
        return masked_diffusion.logits(*about, segments=behind, **beside)

    return functools.partial(run, lm.params)


def weights(masked: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Weigh the tokens of draws: G / k of its group where masked, else 0.

    Args:
        masked: bool[n, L].
        groups: int[L], the group of each token that may be masked; -1: it may not.

    Returns:
        float32[n, L].
    """
    out = np.zeros(masked.shape, np.float32)
    for group in np.unique(groups[groups >= 0]):
        at = groups == group
        count = masked[:, at].sum(1, keepdims=True)
        each = masked[:, at] * (at.sum() / np.maximum(count, 1))
        out[:, at] = each
    return out


def counts(size: int, draws: int, offset: int) -> np.ndarray:
    """Return int[draws], how many of `size` tokens each draw masks.

    Over the `size` offsets each draw masks every number of tokens once; with `size` or
    more draws one offset has all numbers, equally often but for one.
    """
    return (offset + np.arange(draws) * size // draws) % size + 1


def masks(groups: np.ndarray, draws: int, rng: np.random.Generator) -> np.ndarray:
    """Draw the masks bool[draws, L] of a window; `groups` as in `weights`."""
    masked = np.zeros((draws, len(groups)), bool)
    for group in np.unique(groups[groups >= 0]):
        at = groups == group
        size = int(at.sum())
        count = counts(size, draws, int(rng.integers(size)))
        place = rng.random((draws, size)).argsort(1).argsort(1)
        masked[:, at] = place < count[:, None]
    return masked


def grouped(length: int, block: int = 0) -> np.ndarray:
    """Return int[length], the groups of a window: its blocks, or one; -1: given."""
    place = np.arange(length)
    groups = place // block if block else np.zeros(length, int)
    return np.where(place == 0, -1, groups)


def bound(
    law: Law,
    windows: Sequence[np.ndarray],
    mask_token: int,
    size: int,
    block: int = 0,
    draws: int = 128,
    batch: int = 16,
    seed: int = 0,
) -> Bound:
    """Estimate the bound of windows of equal length, whose first tokens are given.

    Args:
        law: the model's.
        windows: int32[L] each.
        mask_token: the mask's id.
        size: UTF-8 bytes of all tokens but the first ones.
        block: positions of a block under block-causal attention; 0: bidirectional.
        draws: of each window.
        batch: draws of a forward pass.
        seed: of numbers and places.

    Raises:
        DataError: no window, windows of several lengths, or too few draws.
    """
    lengths = {len(window) for window in windows}
    if len(lengths) != 1 or min(lengths) < 2 or draws < 1:
        raise DataError(
            f"windows of {sorted(lengths)} tokens, draws={draws}: use windows of one "
            "length, 2 or more, and at least 1 draw"
        )
    score = jax.jit(lambda logits, clean: cross_entropy(logits, clean))
    length, sums = lengths.pop(), []
    groups = grouped(length, block)
    for number, window in enumerate(windows):
        masked = masks(groups, draws, np.random.default_rng([seed, number]))
        share, total = weights(masked, groups), 0.0
        for first in range(0, draws, batch):
            part, weight = masked[first : first + batch], share[first : first + batch]
            clean = np.broadcast_to(np.asarray(window, np.int32), part.shape)
            noised = np.where(part, mask_token, clean).astype(np.int32)
            nats = np.asarray(score(law(noised, clean), jnp.asarray(clean)))
            total += float(np.where(part, nats * weight, 0.0).sum(dtype=np.float64))
        sums.append(total / draws)
    tokens = len(windows) * (length - 1)
    each = np.asarray(sums) / (length - 1)
    error = each.std(ddof=1) / len(each) ** 0.5 if len(each) > 1 else 0.0
    bits = sum(sums) / math.log(2) / size
    return Bound(float(each.mean()), bits, float(error), tokens, size, draws)


def hits(
    law: Law,
    windows: Sequence[np.ndarray],
    mask_token: int,
    rates: Sequence[float] = RATES,
    seed: int = 0,
) -> dict[float, float]:
    """Measure how often the likeliest token of a mask is right, by the masked share."""
    clean = np.stack([np.asarray(window, np.int32) for window in windows])
    open_ = clean.shape[1] - 1
    found = {}
    for rate in rates:
        rng = np.random.default_rng([seed, round(1000 * rate)])
        place = rng.random((len(clean), open_)).argsort(1).argsort(1)
        masked = np.zeros(clean.shape, bool)
        masked[:, 1:] = place < max(round(rate * open_), 1)
        right = 0
        for row, part in zip(clean, masked):
            noised = np.where(part, mask_token, row)[None].astype(np.int32)
            best = np.asarray(law(noised, row[None]).argmax(-1))[0]
            right += int((best == row)[part].sum())
        found[float(rate)] = right / int(masked.sum())
    return found
