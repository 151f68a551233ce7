"""The GPU's benchmark runs from end to end, on a small shape and no GPU."""

import dataclasses
import functools

import jax.numpy as jnp
import ml_collections
import pytest

from configs.studies import kernels
from experiments.run_folder import RunFolder
from experiments.studies.kernels import gpu_timing
from kernels import block_traffic, verify

pytestmark = pytest.mark.kernels

SMALL = {
    "repeats": 1,
    "rounds": 2,
    "copy_bytes": 2**16,
    "forms": ("xla",),
    "cudnn": False,
    "batch": 1,
    "sizes": (64,),
    "nodes": (1, 8),
    "page": 16,
    "vocab": 300,
    "layers": 1,
    "d_model": 32,
    "d_ff": 48,
    "shared_batch": 2,
    "prefixes": (32,),
    "suffix": 16,
    "largest_copied": 32,
}


def test_every_table_is_filled(tmp_path):
    settings = ml_collections.ConfigDict({**kernels.get_config().gpu, **SMALL})
    found = gpu_timing.measure(settings, RunFolder(tmp_path))
    count = {name: len(rows) for name, rows in found.items()}
    assert count == {
        "bandwidth": 1,
        "attention": 4,
        "verify": 2,
        "residual": 2,
        "hydragen": 2,
        "rounds": 2,
    }
    text = gpu_timing.markdown(found)
    assert "nan" not in text and "inf" not in text
    # A second reading is from the folder: nothing is measured again.
    assert gpu_timing.measure(settings, RunFolder(tmp_path)) == found


def test_a_row_says_what_was_run(monkeypatch):
    """A kernel that was asked for and did not take the call; planted: fp32 logits of
    too few tokens on a Hopper, and a GPU that is none."""
    monkeypatch.setattr(block_traffic, "platform", lambda: "hopper")
    taken = functools.partial(gpu_timing._taken, "pallas", verify.choose)
    shape = verify.Shape(1, 1, 4096, jnp.dtype(jnp.float32))
    assert taken(shape) == "pallas"
    assert taken(dataclasses.replace(shape, vocab=300)) == "pallas: xla"
    assert gpu_timing._taken("xla", verify.choose, shape) == "xla"
    monkeypatch.setattr(block_traffic, "platform", lambda: "gpu")
    assert taken(shape) == "pallas: xla"


def test_a_ratio_is_of_the_same_size():
    """Planted in a made-up run: N = 8 at twice the time of N = 1 of its own size."""
    row = {"form": "xla", "gb_s": 1.0, "share": 0.5}
    rows = [
        {**row, "size": size, "nodes": nodes, "ms": ms}
        for size, nodes, ms in ((64, 1, 2.0), (64, 8, 4.0), (128, 8, 3.0))
    ]
    found = {
        "bandwidth": [{"gb_s": 2.0}],
        "attention": rows,
        "verify": [],
        "residual": [],
        "hydragen": [],
        "rounds": [{"nodes": 1, "ms": 2.0, "mbu": 0.5}],
    }
    lines = gpu_timing.markdown(found).splitlines()
    line = next(x for x in lines if x.startswith("| xla | 64 | 8 |"))
    assert "| 2.00 | 1.00 |" in line
    line = next(x for x in lines if x.startswith("| xla | 128 | 8 |"))
    assert "|  | 1.00 |" in line
