"""A canvas is cut where an end of sequence is predicted."""

import numpy as np
import pytest

from decoding import Spec
from decoding.diffusion import eotp
from models.errors import MethodError
from tests.decoding.diffusion import writing


def stop(floor):
    """The first committed end of the block, else the most confident predicted one."""

    def cut(view, tokens, limit):
        ends = {p: g for p, g in view.guesses.items() if g.token == 2}
        committed = [p for p in ends if tokens[p] is not None]
        if committed:
            return min(committed) + 1
        sure = {
            p: g.logp for p, g in ends.items() if np.exp(np.float32(g.logp)) >= floor
        }
        if not sure:
            return limit
        return max(sure, key=lambda p: (sure[p], -p)) + 1

    return cut


def test_predicted_ends_cut():
    lm = writing.lm()
    out = writing.written(lm, Spec("diffusion/eotp", floor=0.4))
    oracle = writing.expected(lm, writing.single, stop=stop(0.4))
    assert writing.same(out, oracle)
    # Planted: only what is written ends a text.
    assert not writing.same(out, writing.expected(lm, writing.single))
    assert out.guarantee == "LOSSY"


def test_refused_floors():
    with pytest.raises(MethodError, match="floor=2"):
        eotp.scheduler((2,), 2)
