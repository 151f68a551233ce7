"""The denoise loop in plain Python, on the masked toy: the oracle of its tests.

Every step is a whole pass over Python lists; no function of the loop is used. Rules are
written again, as their papers have them.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from models.synthetic import toy_masked

BLOCK = 32


class Guess(NamedTuple):
    """What the model proposes for an open position."""

    token: int
    logp: float  # of the token, under the raw law
    probs: np.ndarray  # float64[V]


class View(NamedTuple):
    """What a rule sees: the open positions of the block, and how far the row is."""

    guesses: dict[int, Guess]  # by position
    step: int  # forwards of this block so far
    masks: int  # open positions of this block at its first step
    total: int  # forwards of the row so far
    canvas: tuple[int, int]  # the prompt's end, the canvas's end


Rule = Callable[[View], set[int]]


class Text(NamedTuple):
    """A finished row."""

    tokens: list[int]  # behind the prompt
    logprobs: list[float]
    calls: int
    born: list[int]  # the step of each token's commit


def first(guesses: dict[int, Guess], count: int, value=lambda g: g.logp) -> set[int]:
    """Return the `count` best positions; ties: the lower one."""
    order = sorted(guesses, key=lambda p: (-value(guesses[p]), p))
    return set(order[:count])


def denoise(
    config: toy_masked.Config,
    params: dict,
    prompt: Sequence[int],
    new: int,
    rule: Rule,
    plan: Callable[[View, int], int] | None = None,
    stop: Callable[[View, list[int | None], int], int] | None = None,
    policy: str = "recompute",
    refresh: int = 8,
    causal: bool = False,
    suffix: Sequence[int] = (),
    draw: Callable[[int, int, np.ndarray], int] | None = None,
) -> Text:
    """Write one canvas.

    Args:
        config: of the toy.
        params: of the toy.
        prompt: its tokens.
        new: open positions.
        rule: chooses what to commit.
        plan: maps a view of the window and `lo` to the end of a block; None: `lo` + 32.
        stop: maps a view, the tokens (None: open) and the limit to a new limit.
        policy: file of decoding/caches/.
        refresh: of "dkv".
        causal: attention is block-causal.
        suffix: given tokens behind the canvas.
        draw: maps position, committed tokens and logits to a token; None: the best.
    """
    mask, block = config.mask_token, config.block_size
    start, end = len(prompt), len(prompt) + new
    tokens: list[int | None] = [*prompt, *[None] * new, *suffix]
    limit = len(tokens)
    logprobs, born = [0.0] * limit, [-1] * limit
    cache = toy_masked.Reference(config, params)
    shift = int(config.alignment == "shifted")
    lo, hi, masks, begun, step, count = start, start, 0, 0, 0, 0
    if policy == "block_causal":
        whole = start // block * block
        cache.run(
            [mask if t is None else t for t in tokens],
            range(whole),
            lambda p: (p // block + 1) * block,
        )
    is_open = lambda p: p < limit and tokens[p] is None
    while any(is_open(p) for p in range(limit)):
        begins = lo == hi
        seen = [mask if t is None else t for t in tokens]

        def sees(p, limit=limit):
            if causal or policy == "block_causal":
                return min((p // block + 1) * block, limit)
            return limit

        window = [p for p in range(lo, limit) if is_open(p)]
        if causal or policy == "block_causal":
            window = [p for p in window if p < (lo // block + 1) * block]
        run = _runs(policy, locals(), refresh, block)
        read = window if begins else [p for p in window if p < hi]
        run |= {p - shift for p in read}
        found = cache.run(seen, [p for p in run if 0 <= p < limit], sees)
        guesses = {}
        for p in read:
            logits = found[p - shift].astype(np.float32).copy()
            logits[mask] = -np.inf
            wide = logits.astype(np.float64)
            law = np.exp(wide - wide.max())
            law /= law.sum()
            token = int(logits.argmax()) if draw is None else draw(p, count, logits)
            guesses[p] = Guess(token, math.log(law[token]), law)
        if begins:
            view = View(guesses, 0, len(guesses), step, (start, limit))
            hi = lo + BLOCK if plan is None else plan(view, lo)
            if causal or policy == "block_causal":
                hi = min(hi, (lo // block + 1) * block)
            hi, begun = min(max(hi, lo + 1), limit), step
        guesses = {p: g for p, g in guesses.items() if p < hi}
        masks = len(guesses) if begins else masks
        view = View(guesses, step - begun, masks, step, (start, limit))
        commit = rule(view) or first(guesses, 1)
        for p in commit:
            tokens[p], logprobs[p] = guesses[p].token, guesses[p].logp
            born[p] = step
        count, step = count + len(commit), step + 1
        if stop is not None:
            limit = min(limit, stop(view, tokens, limit))
        opened = next((p for p in range(limit) if tokens[p] is None), limit)
        for p in range(start, min(opened, end)):
            if tokens[p] in config.eos:
                limit = min(limit, p + 1)
                break
        hi = min(hi, limit)
        if not any(is_open(p) for p in range(lo, hi)):
            lo = hi = next((p for p in range(limit) if tokens[p] is None), limit)
    last = min(limit, end)
    written = [t for t in tokens[start:last] if t is not None]
    return Text(written, logprobs[start:last], step, born[start:last])


def _runs(policy: str, at: dict, refresh: int, block: int) -> set[int]:
    """Return the positions that a cache policy runs, beside those that are read."""
    lo, hi, limit, begins = at["lo"], at["hi"], at["limit"], at["begins"]
    everything = set(range(limit))
    if policy == "recompute":
        return everything
    if policy == "prefix":
        return everything if begins else set(range(lo, limit))
    if policy == "dual":
        return everything if begins else set(range(lo, hi))
    if policy == "dkv":
        age = 0 if begins else at["step"] - at["begun"]
        if age <= 1 or age % refresh == 0:
            return everything
        fresh = {p for p in everything if at["born"][p] == at["step"] - 1}
        return fresh | {p for p in everything if at["tokens"][p] is None}
    begin = lo // block * block
    behind = begin + block
    return set(range(begin - block if begins else begin, behind))
