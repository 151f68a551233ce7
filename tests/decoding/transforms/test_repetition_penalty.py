"""decoding/transforms/repetition_penalty.py."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

from decoding.transforms import presence_penalty, repetition_penalty
from models.errors import MethodError

make = functools.partial(repetition_penalty.transform, vocab_size=101)


@pytest.mark.parametrize("penalty", [0.7, 1.3])
def test_equals_hf(parity, penalty):
    parity(f"repetition_penalty/{penalty}", make(penalty))


def test_fault_a_penalty_blind_to_the_prompt(parity):
    blind = presence_penalty.transform(1.3, 101)
    with pytest.raises(AssertionError):
        parity("repetition_penalty/1.3", make(1.3)._replace(init=blind.init))


def test_by_hand():
    made = repetition_penalty.transform(2.0, 40)
    state = made.init(jnp.array([33, 1, 7], jnp.int32), jnp.int32(2))
    state = made.advance(state, jnp.int32(39), jnp.zeros(40), {})
    out = np.asarray(made.apply(state, jnp.where(jnp.arange(40) < 20, -4.0, 4.0), {}))
    want = np.where(np.arange(40) < 20, -4.0, 4.0)
    want[[1, 33, 39]] = -8.0, 2.0, 2.0  # 7 lies past the prompt's length
    np.testing.assert_array_equal(out, want)


@pytest.mark.parametrize("penalty", [0, -1.0, float("nan"), float("inf")])
def test_refuses(penalty):
    with pytest.raises(MethodError, match="1 has no effect"):
        make(penalty)
