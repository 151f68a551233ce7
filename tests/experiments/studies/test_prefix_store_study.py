"""The stage `prefix_store`: its tables, and the bits of tables of a row's own."""

import numpy as np
import pytest

from experiments.recipes import settings
from experiments.run_folder import RunFolder
from experiments.studies import prefix_store


def test_bits_of_own_tables():
    """By hand: even symbols take log2 of their number; planted: constant ones."""
    rng = np.random.default_rng(0)
    # Maxima of 1 in an extra channel, so that symbols are 15 times the values.
    even = rng.integers(-15, 16, (1, 9300, 4)) / 15
    even[..., 0] = 1
    names = [f"caches.target.layers.0.{kind}" for kind in "kv"]
    arrays = {name: even.astype(np.float32) for name in names}
    bits, fixed, size = prefix_store.own_tables(arrays, "3")
    count = 2 * 3 * 9300
    assert bits / count == pytest.approx(np.log2(31), rel=2e-3)
    assert fixed == pytest.approx(np.log2(31) * 2 * 4 * 9300)
    assert size == 16 * 31 * 8
    constant = {name: np.ones_like(x) for name, x in arrays.items()}
    assert prefix_store.own_tables(constant, "3")[0] < 0.01 * count


def test_tables_by_hand():
    one = {"raw": 5, "own": 4, "table": 2, "calibrated": 3.2, "deltas": 3.5}
    rows = [
        {"dense": 2.0, **{level: {"nats": nats, **one} for level in "321"}}
        for nats in (2.0, 2.2)
    ]
    (line, *_) = prefix_store.losses(rows)["lines"]
    assert line[:3] == ["3", "+0.1000 ± 0.1000", "5.00"] and line[-2:] == ["5.0", "2.5"]
    times = {"computed": {"ms": 9.6, "load": 0, "bytes": 0, "loaded": 0}}
    assert prefix_store.loads(times, 512)["lines"] == [
        ["computed", "–", "0", "–", "10"]
    ]


@pytest.mark.long
def test_stage(tmp_path):
    """On the shipped model: the levels' bits in order, and prefixes that load."""
    c = settings.load("configs/studies/prefix_store.py")
    c.update(calibration=2, files=2, repeats=1, prefix_tokens=256, next_tokens=64)
    found = prefix_store.run(c, RunFolder(tmp_path))
    for row in found["repeats"]:
        bits = [row[level]["calibrated"] for level in "321"]
        assert bits == sorted(bits, reverse=True) and bits[-1] > 1
    loaded = [line[2] for line in found["tables"][1]["lines"]]
    assert loaded == ["0", "256", "256", "256", "256"]
