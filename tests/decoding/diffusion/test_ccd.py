"""Positions that several steps agree on, in the text's form and the code's."""

import numpy as np
import pytest

from decoding import Spec
from decoding.conformance import canvases
from decoding.diffusion import ccd
from models.errors import MethodError
from tests.decoding.diffusion import writing


def entropy(p):
    return -(p[p > 0] * np.log(p[p > 0])).sum()


def sure(guess):
    return -entropy(guess.probs)


def by_mean(steps, top):
    """CCD-DS as the text has it."""
    past = []

    def choose(view):
        if view.step == 0:
            past.clear()
        names = canvases.first(view.guesses, top, sure)
        laws = [view.guesses, *(guesses for _, guesses in past)]
        among = names.intersection(*(old for old, _ in past))
        if len(past) < steps - 1:
            among = set()
        commit = among or canvases.first(view.guesses, 1, sure)
        rest = {p: g for p, g in view.guesses.items() if p not in commit}
        past.append((canvases.first(rest, top, sure), view.guesses))
        del past[: -(steps - 1)]
        assert len(laws) <= steps
        return commit

    return choose


def by_code(top):
    """CCD-DS as the released code has it, on open positions alone."""
    state = {"size": 0, "names": set(), "best": {}}

    def choose(view):
        if len(view.guesses) <= 0.1 * view.masks:
            state["size"] = 1
        state["size"] = 1 if view.step < 4 else min(state["size"] + 1, top + 1)
        best = {p: int(g.probs.argmax()) for p, g in view.guesses.items()}
        first = canvases.first(view.guesses, 1, sure)
        commit = first
        if view.step >= 5 and first & state["names"]:
            names = canvases.first(view.guesses, state["size"], sure) & state["names"]
            commit = {p for p in names if best[p] == state["best"][p]} or first
        rest = {p: g for p, g in view.guesses.items() if p not in commit}
        state["names"] = canvases.first(rest, state["size"], sure)
        state["best"] = best
        return commit

    return choose


@pytest.mark.parametrize("average", [True, False])
def test_steps_that_agree(average):
    lm, size = writing.lm(eos=(), scale=2.0), 13
    part = Spec("diffusion/ccd", average=average, top=3)
    out = writing.written(lm, part, Spec("diffusion/blocks"), planned=True)
    whole = lambda view, lo: lo + size
    rule = by_mean(2, 3) if average else by_code(3)
    assert writing.same(out, writing.expected(lm, rule, whole))
    # Planted: what the steps before named is forgotten.
    alone = lambda view: canvases.first(view.guesses, 1, sure)
    assert not writing.same(out, writing.expected(lm, alone, whole))


def test_refused_numbers():
    with pytest.raises(MethodError, match="steps=1"):
        ccd.scheduler(8, steps=1)
