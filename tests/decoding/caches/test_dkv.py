"""Keys are kept a step after their tokens are committed."""

import pytest

from decoding.caches import dkv
from models.errors import MethodError
from tests.decoding.caches import canvases


@pytest.mark.long
@pytest.mark.parametrize("alignment", ["same", "shifted"])
def test_keys_are_kept_with_a_delay(alignment):
    """Planted: nothing is kept."""
    assert canvases.differs("dkv", "recompute", alignment)


def test_refused_numbers():
    with pytest.raises(MethodError, match="refresh=0"):
        dkv.canvas_policy(refresh=0)
