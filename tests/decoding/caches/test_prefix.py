"""Keys before the block are kept."""

import pytest

from tests.decoding.caches import canvases


@pytest.mark.long
@pytest.mark.parametrize("alignment", ["same", "shifted"])
def test_keys_before_the_block_are_kept(alignment):
    """Planted: those behind it are kept, too."""
    assert canvases.differs("prefix", "dual", alignment)
