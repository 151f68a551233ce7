"""Fixed quotas, by confidence or at random."""

import numpy as np
import pytest

from decoding import Spec
from decoding.conformance import canvases
from decoding.diffusion import llada
from models.errors import MethodError
from tests.decoding.diffusion import writing


def by_quota(steps):
    """The rule of `steps` forwards a block, as the paper has it."""

    def rule(view):
        each, more = divmod(view.masks, steps)
        return canvases.first(view.guesses, each + (view.step < more))

    return rule


def test_one_position_a_forward():
    lm = writing.lm()
    out = writing.written(lm)
    assert writing.same(out, writing.expected(lm, writing.single))
    assert out.guarantee == "LAW"
    # Planted: two positions a forward.
    two = lambda view: canvases.first(view.guesses, 2)
    assert not writing.same(out, writing.expected(lm, two))


def test_quotas_of_a_block():
    lm = writing.lm("shifted")
    out = writing.written(lm, Spec("diffusion/llada", steps=3))
    assert writing.same(out, writing.expected(lm, by_quota(3)))
    assert out.guarantee == "LOSSY"


def test_quotas_sum_to_the_masks():
    """For all m and s up to 64."""
    masks, steps = np.mgrid[0:65, 1:65]
    total = sum(
        np.where(i < steps, llada.quota(masks, steps, np.int64(i)), 0)
        for i in range(64)
    )
    assert (total == masks).all()
    # Planted: the remainder is left open.
    assert (
        sum(np.where(i < steps, masks // steps, 0) for i in range(64)) < masks
    ).any()


def test_refused_arguments():
    with pytest.raises(MethodError, match="order='best'"):
        llada.scheduler(order="best")
    with pytest.raises(MethodError, match="steps=-1"):
        llada.scheduler(steps=-1)
