"""Blocks of a given size, or one block."""

import pytest

from decoding import Spec
from decoding.diffusion import blocks
from models.errors import MethodError
from tests.decoding.diffusion import writing


def test_one_block():
    lm = writing.lm(eos=())
    out = writing.written(lm, Spec("diffusion/blocks"), planned=True)
    whole = lambda view, lo: view.canvas[1]
    assert writing.same(out, writing.expected(lm, writing.single, whole))
    # Planted: blocks of five, whose last positions wait for the first ones.
    assert not writing.same(out, writing.expected(lm, writing.single))


def test_refused_sizes():
    with pytest.raises(MethodError, match="size=-1"):
        blocks.scheduler(-1)
