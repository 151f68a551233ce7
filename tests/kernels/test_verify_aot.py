"""The pass over logits through the real TPU compiler (needs libtpu)."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

pytest.importorskip("libtpu", reason="the extra `tpu` is not installed")

from kernels import aot, block_traffic
from kernels.verify import tiling
from tests.kernels.test_verify import SHAPES

pytestmark = pytest.mark.tpu_aot

OPERATIONS = ("verify", "residual", "thresholds")
GRID = [
    (chip, operation, shape)
    for chip in block_traffic.VMEM
    for operation in OPERATIONS
    for shape in SHAPES
]
# Each operation, the pass on two chips; each with a shape of its own.
CASES = [
    ("v4", "verify", SHAPES[3]),
    ("v5e", "thresholds", SHAPES[0]),
    ("v5p", "residual", SHAPES[1]),
    ("v6e", "verify", SHAPES[2]),
]


def check(chip, operation, shape):
    cut, compiled = aot.over_vocabulary(chip, operation, shape)
    assert cut.vmem <= block_traffic.budget(chip)
    text = compiled.as_text()
    assert "tpu_custom_call" in text
    # Nothing of the logits' size is made on the way into the kernel.
    whole = shape.batch * shape.nodes * shape.vocab
    assert compiled.memory_analysis().temp_size_in_bytes < whole


@pytest.mark.parametrize("case", CASES, ids=str)
def test_compiles_within_the_chips_memory(case):
    check(*case)


@pytest.mark.long
def test_too_much_memory_is_refused(monkeypatch):
    """Planted: steps of eight times as many logits as there is room for on a v4."""
    monkeypatch.setattr(tiling, "STEP", 2**21)
    monkeypatch.setattr(tiling.Plan, "vmem", property(lambda plan: 0))
    with pytest.raises(jax.errors.JaxRuntimeError, match="vmem"):
        aot.over_vocabulary("v4", "verify", SHAPES[1])


@pytest.mark.long
@pytest.mark.parametrize("case", GRID, ids=str)
def test_the_full_grid_compiles(case):
    check(*case)


@pytest.mark.long
@pytest.mark.parametrize("chip", block_traffic.VMEM)
def test_a_vocabulary_of_odd_size_compiles(chip):
    odd = dataclasses.replace(SHAPES[1], vocab=50257, dtype=jnp.dtype(jnp.float32))
    for operation in OPERATIONS:
        check(chip, operation, odd)
