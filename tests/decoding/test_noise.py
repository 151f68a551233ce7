"""The noise of positions: JAX's Gumbel draws, bit for bit, by a faster expression."""

import functools

import jax
import numpy as np
import pytest

from decoding import noise

SIZES = (7, 128, 4095, 50257)  # within one step, whole steps, and the rest of one


@functools.partial(jax.jit, static_argnums=1)
def both(key, size):
    return noise.gumbel(key, size), jax.random.gumbel(key, (size,), np.float32)


@pytest.mark.parametrize("size", SIZES)
def test_the_noise_is_that_of_jax(size):
    for seed in (0, 1, 2**31 - 1):
        own, theirs = both(jax.random.fold_in(jax.random.key(seed), 5), size)
        np.testing.assert_array_equal(own, theirs)


def test_other_generators_keep_their_own_noise():
    key, ids = jax.random.key(3, impl="rbg"), np.array([1, 8])
    whole = jax.random.gumbel(key, (9,))
    np.testing.assert_array_equal(noise.gumbel(key, 9), whole)
    np.testing.assert_array_equal(noise.gumbel(key, 9, ids), whole[ids])


def test_noise_of_some_tokens_is_a_part_of_all_noise():
    key, ids = jax.random.key(4), np.array([0, 3, 130, 499])
    whole = noise.gumbel(key, 500)
    np.testing.assert_array_equal(noise.gumbel(key, 500, ids), whole[ids])
    assert not np.array_equal(noise.gumbel(key, 4), whole[ids])  # planted: by place


def test_fault_a_turn_by_another_number_of_bits(monkeypatch):
    """Planted: one of the eight rotations is off by one."""
    turns = ((13, 15, 26, 7), noise.ROTATIONS[1])
    monkeypatch.setattr(noise, "ROTATIONS", turns)
    own = noise.gumbel(jax.random.key(0), 128)
    assert not np.array_equal(own, jax.random.gumbel(jax.random.key(0), (128,)))
