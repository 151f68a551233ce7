"""All keys but the block's are kept."""

import pytest

from tests.decoding.caches import canvases


@pytest.mark.parametrize(
    "alignment", ["shifted", pytest.param("same", marks=pytest.mark.long)]
)
def test_keys_around_the_block_are_kept(alignment):
    """The oracle freezes what it ran at the block's first step.

    Planted: nothing is kept.
    """
    assert canvases.differs("dual", "recompute", alignment)
