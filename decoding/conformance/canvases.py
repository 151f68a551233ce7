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
    logp: float  # of the token, under `probs`
    probs: np.ndarray  # float64[V]: behind the constraint
    raw: np.ndarray  # float64[V]: log-probabilities before it
    redraw: Callable[[set[int]], int]  # the token if some are forbidden


class View(NamedTuple):
    """What a rule sees: the open positions of the block, and how far the row is."""

    guesses: dict[int, Guess]  # by position
    step: int  # forwards of this block so far
    masks: int  # open positions of this block at its first step
    total: int  # forwards of the row so far
    canvas: tuple[int, int]  # the prompt's end, the canvas's end


Rule = Callable[[View], set[int]]
Holds = Callable[[Sequence[int | None]], bool]


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
    beside: int | None = None,
    causal: bool = False,
    suffix: Sequence[int] = (),
    draw: Callable[[int, int, np.ndarray], int] | None = None,
    constraint: Holds | None = None,
    is_masked: bool = True,
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
        beside: window of "dkv", for a rule that looks at no guess; None: none.
        causal: attention is block-causal.
        suffix: given tokens behind the canvas.
        draw: maps position, committed tokens and logits to a token; None: the best.
        constraint: whether the tokens behind the prompt (None: open) can be filled.
        is_masked: a guess is one of the tokens that keep it so; else it is drawn
            again, token by token, when it is committed.
    """
    draw = draw or (lambda p, count, logits: int(logits.argmax()))
    holds = constraint or (lambda text: True)
    masks_guesses = constraint is not None and is_masked
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
        read = window if begins else [p for p in window if p < hi]
        if beside is not None and not begins:  # what is committed is known before
            about = (step - begun, masks, step, (start, limit))
            soon = rule(View(dict.fromkeys(read), *about))  # type: ignore[arg-type]
            read = [p for p in read if p in soon]
        run = _runs(policy, locals(), refresh, block)
        run |= {p - shift for p in read}
        if policy in ("prefix", "dual"):
            run.add(lo - shift)
        found = cache.run(seen, [p for p in run if 0 <= p < limit], sees)
        guesses = {}
        for p in read:
            logits = found[p - shift].astype(np.float32).copy()
            logits[mask] = -np.inf
            raw = _log_law(logits)
            if masks_guesses:
                for token in range(config.vocab_size):
                    text = [*tokens[start:p], token, *tokens[p + 1 : limit]]
                    if not holds(text):
                        logits[token] = -np.inf

            def redraw(without: set[int], p=p, logits=logits, count=count) -> int:
                left = logits.copy()
                left[list(without)] = -np.inf
                return draw(p, count, left)

            law, token = np.exp(_log_law(logits)), redraw(set())
            guesses[p] = Guess(token, math.log(law[token]), law, raw, redraw)
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
        if constraint is not None:
            commit = _admitted(
                guesses, commit, tokens, (start, limit), holds, masks_guesses
            )
        for p in commit:
            tokens[p], logprobs[p] = guesses[p].token, guesses[p].raw[guesses[p].token]
            born[p] = step
        count, step = count + len(commit), step + 1
        if stop is not None:
            wish = min(limit, stop(view, tokens, limit))
            may = constraint is None or (limit <= end and holds(tokens[start:wish]))
            limit = wish if may else limit
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


def _log_law(logits: np.ndarray) -> np.ndarray:
    wide = logits.astype(np.float64)
    wide = wide - wide.max()
    return wide - np.log(np.exp(wide).sum())


def _admitted(
    guesses: dict[int, Guess],
    commit: set[int],
    tokens: list[int | None],
    canvas: tuple[int, int],
    holds: Holds,
    is_masked: bool,
) -> set[int]:
    """Return the positions whose tokens keep a canvas possible one after the other.

    Guesses that are drawn again change in `guesses`.
    """
    text, kept = list(tokens), set[int]()
    order = sorted(commit, key=lambda p: (-guesses[p].logp, p))
    for p in order:
        tried: set[int] = set()
        while True:
            token = guesses[p].redraw(tried)
            text[p] = token
            if (not kept and is_masked) or holds(text[slice(*canvas)]):
                break
            text[p] = None
            tried.add(token)
            if is_masked or len(tried) == len(guesses[p].probs):
                break
        if text[p] is None:
            continue
        kept.add(p)
        law = guesses[p].probs
        logp = math.log(max(law[token], 1e-300))
        guesses[p] = guesses[p]._replace(token=token, logp=logp)
    return kept


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
        age, near = 0 if begins else at["step"] - at["begun"], at["beside"]
        if age <= (1 if near is None else 0) or age % refresh == 0:
            return everything
        fresh = {p for p in everything if at["born"][p] == at["step"] - 1}
        opened = {p for p in everything if at["tokens"][p] is None}
        if near is None:
            return fresh | opened
        others, run = opened - {*at["read"]}, fresh | {*at["read"]}
        for p in at["read"]:
            distances = sorted((abs(q - p), q) for q in others)
            run |= {q for _, q in distances[:near]}
        return run
    begin = lo // block * block
    behind = begin + block
    return set(range(begin - block if begins else begin, behind))
