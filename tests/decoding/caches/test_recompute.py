"""The whole canvas at every step."""

import pytest

from decoding.caches import recompute
from models.errors import MethodError
from tests.decoding.caches import canvases


def test_the_whole_canvas_runs():
    """Planted: keys that were left behind, as `dual` has them."""
    assert canvases.differs("recompute", "dual")


def test_unknown_visibility():
    with pytest.raises(MethodError, match="visibility='causal'"):
        recompute.canvas_policy("causal", 4)
