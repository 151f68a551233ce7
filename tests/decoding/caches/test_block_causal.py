"""Exact keys of blocks that see what stands before them."""

import pytest

from decoding.caches import block_causal
from models.errors import MethodError
from tests.decoding.caches import canvases


@pytest.mark.parametrize(
    "alignment", ["shifted", pytest.param("same", marks=pytest.mark.long)]
)
def test_blocks_see_what_stands_before(alignment):
    """The oracle reads the prompt's blocks, and runs each block and the one before.

    Planted: every position sees the whole canvas.
    """
    assert canvases.differs("block_causal", "recompute", alignment)


def test_models_that_were_not_trained_for_it():
    with pytest.raises(MethodError, match="use caches/recompute"):
        block_causal.canvas_policy(("bidirectional",), 4)
    with pytest.raises(MethodError, match="block_size=0"):
        block_causal.canvas_policy(("block_causal",), 0)
