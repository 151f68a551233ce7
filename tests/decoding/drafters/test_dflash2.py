"""DFlash 2 in the loop: convolutions, and a law among the candidates."""

import functools

import jax
import jax.numpy as jnp

from models.heads import dflash2 as heads
from models.heads.modules import block_layers
from tests.decoding.drafters import agreement
from training.objectives.heads import dflash2

KEY = jax.random.key(0)


@functools.cache
def loop():
    fields = {"rank": 8, "convolution": 8, "candidates": 6, "layers": 2, "block": 4}
    own = heads.init(KEY, agreement.target().config, **fields)
    return agreement.Loop("drafters/dflash2", dflash2, agreement.stirred(own, 0.3), 3)


def test_drafts_in_the_loop_are_those_over_the_text():
    assert loop().agrees()


def test_fault_the_last_slot_before_the_first(monkeypatch):
    """Planted: in the loop the first slot's convolution reads the last slot."""

    def convolved(kernels, x):
        before = jnp.roll(x, 1, -2)
        return kernels[..., 0, :] * x + kernels[..., 1, :] * before

    def block(*arguments):
        with monkeypatch.context() as patch:
            patch.setattr(block_layers, "convolved", convolved)
            return sound(*arguments)

    run, sound = loop(), block_layers.block
    monkeypatch.setattr(block_layers, "block", block)
    assert not run.agrees()
