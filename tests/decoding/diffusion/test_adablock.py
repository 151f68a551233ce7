"""Blocks that end at a delimiter."""

import numpy as np
import pytest

from decoding import Spec
from decoding.diffusion import adablock
from models.errors import MethodError
from tests.decoding.diffusion import writing

PART = Spec("diffusion/adablock", delimiters=(0, 4), threshold=0.4, size=3)


def plan(threshold):
    def choose(view, lo):
        start, end = view.canvas
        reach = int(0.25 * (end - start))
        ends = {
            p: np.exp(np.float32(g.logp))
            for p, g in view.guesses.items()
            if g.token in (0, 4) and p < lo + reach
        }
        if not ends:
            return lo + 3
        best = max(ends, key=lambda p: (ends[p], -p))
        return best + 1 if ends[best] >= threshold else lo + 3

    return choose


def test_blocks_end_at_delimiters():
    lm = writing.lm()
    settings = {"max_new_tokens": 24}
    out = writing.written(lm, PART, planned=True, **settings)
    oracle = writing.expected(lm, writing.single, plan(0.4), 24)
    assert writing.same(out, oracle)
    # Planted: delimiters are not looked for.
    fixed = writing.expected(lm, writing.single, plan(2.0), 24)
    assert not writing.same(out, fixed)


def test_delimiters_need_a_tokenizer():
    with pytest.raises(MethodError, match="give characters"):
        adablock.scheduler("\n")
    with pytest.raises(MethodError, match="size=0"):
        adablock.scheduler((1,), size=0)
