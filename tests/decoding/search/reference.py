"""Beam search by lists on the host: every hypothesis is a text of its own."""

from typing import Any, NamedTuple

import numpy as np

from models.synthetic import toy


class Rules(NamedTuple):
    width: int = 4
    alpha: float = 1.0
    early: Any = False
    gnmt: bool = False
    everyone: bool = False  # any ended candidate enters the pool


def log_law(params, text: list[int]) -> np.ndarray:
    logits = np.asarray(toy.logits(params, text), np.float64)
    top = logits.max()
    return logits - top - np.log(np.exp(logits - top).sum())


def beams(
    law, prompt: list[int], new: int, ends: tuple[int, ...], rules: Rules
) -> list[tuple[float, list[int]]]:
    """The pool, best first: (score, text).

    Args:
        law: text -> log-probabilities float64[V].
        prompt: token ids.
        new: generated tokens at most.
        ends: tokens that end a text.
        rules: of the search.
    """

    def value(total: float, size: int) -> float:
        return total / ((5 + size) / 6 if rules.gnmt else size) ** rules.alpha

    running, pool = [(0.0, [])], []
    for size in range(1, new + 1):
        candidates = [
            (total + step, [*text, token])
            for total, text in running
            for token, step in enumerate(law([*prompt, *text]))
        ]
        candidates.sort(key=lambda c: -c[0])
        candidates = candidates[: max(2, 1 + len(ends)) * rules.width]
        over = [text[-1] in ends or size == new for _, text in candidates]
        for rank, ((total, text), ended) in enumerate(zip(candidates, over)):
            if ended and (rules.everyone or rank < rules.width):
                pool.append((value(total, size), text))
        pool.sort(key=lambda c: -c[0])
        pool = pool[: rules.width]
        running = [c for c, ended in zip(candidates, over) if not ended]
        running = running[: rules.width]
        if not running:
            break
        if len(pool) == rules.width:
            reach = new if rules.early == "never" and rules.alpha > 0 else size
            if rules.early is True or pool[-1][0] >= value(running[0][0], reach):
                break
    return pool


def groups(
    law,
    prompt: list[int],
    new: int,
    ends: tuple[int, ...],
    rules: Rules,
    count: int,
    penalty: float,
    stopped_pay: bool = False,
) -> list[tuple[float, list[int]]]:
    """The pools of groups of beams together, best first, by the rules of HF 4.46.

    Arguments are those of `beams`, and the number of groups, the penalty for a token
    that an earlier group chose, and whether groups that ended still choose (a fault).
    """
    each = rules.width // count
    value = lambda total, size: total / size**rules.alpha
    running = [[(0.0, [])] for _ in range(count)]
    pools = [[] for _ in range(count)]
    done = [False] * count
    for size in range(1, new + 1):
        chosen = np.zeros(len(law(prompt)))
        for g in range(count):
            if done[g] and not stopped_pay:
                continue
            candidates = [
                (total + step - penalty * chosen[token], [*text, token])
                for total, text in running[g]
                for token, step in enumerate(law([*prompt, *text]))
            ]
            candidates.sort(key=lambda c: -c[0])
            candidates = candidates[: max(2, 1 + len(ends)) * each]
            fresh = [
                (value(total, size), text)
                for total, text in candidates[:each]
                if text[-1] in ends
            ]
            running[g] = [c for c in candidates if c[1][-1] not in ends][:each]
            for _, text in running[g]:
                chosen[text[-1]] += 1
            if done[g]:
                continue
            if size == new:
                fresh += [(value(total, size), text) for total, text in running[g]]
            pools[g] = sorted([*pools[g], *fresh], key=lambda c: -c[0])[:each]
            full = len(pools[g]) == each
            reach = new if rules.early == "never" and rules.alpha > 0 else size
            hope = value(candidates[0][0], reach)
            done[g] = full and (rules.early is True or pools[g][-1][0] >= hope)
        if all(done):
            break
    return sorted((c for pool in pools for c in pool), key=lambda c: -c[0])
