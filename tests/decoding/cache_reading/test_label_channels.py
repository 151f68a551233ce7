"""The file of label channels, and what is refused."""

import numpy as np
import pytest

from decoding.cache_reading import label_channels
from decoding.conformance import peaked
from models.errors import MethodError

pytestmark = pytest.mark.kv

ORDER = np.random.default_rng(0).permuted(np.tile(np.arange(8), (2, 2, 1)), axis=-1)


def test_a_file_holds_the_order(tmp_path):
    """Planted: the channels in their own order."""
    name = str(tmp_path / "new" / "channels.json")
    label_channels.save(name, ORDER, {"by": "q"})
    for width in (2, 4, 8):
        table = label_channels.of_model(peaked.config(), name, width)
        np.testing.assert_array_equal(table, ORDER[..., :width])
        assert (table != np.arange(width)).any()


def test_all_channels_need_no_file():
    table = label_channels.of_model(peaked.config(), None, 8)
    assert (table == np.arange(8)).all() and table.shape == (2, 2, 8)


@pytest.mark.parametrize(
    ("order", "width"),
    [
        (ORDER[:1], 2),  # a layer too few
        (ORDER[..., :3], 4),  # a channel too few
        (ORDER + 5, 8),  # channels that no head has
        (np.zeros((2, 2, 8), int), 2),  # one channel twice
        ([[[0, 1], [2]], [[0, 1], [2, 3]]], 2),  # lists of other lengths
    ],
)
def test_channels_of_another_model(order, width):
    order = order.tolist() if isinstance(order, np.ndarray) else order
    with pytest.raises(MethodError, match="this model needs"):
        label_channels.of_model(peaked.config(), order, width)


def test_a_file_that_holds_something_else(tmp_path):
    path = tmp_path / "other.json"
    path.write_text("[1, 2]")
    with pytest.raises(MethodError, match="is no file of"):
        label_channels.load(str(path))
