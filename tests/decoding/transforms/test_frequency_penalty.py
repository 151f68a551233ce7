"""decoding/transforms/frequency_penalty.py."""

import jax.numpy as jnp
import numpy as np
import pytest

from decoding.transforms import frequency_penalty, presence_penalty
from models.errors import MethodError


def test_by_hand():
    made = frequency_penalty.transform(0.5, 12)
    state = made.init(jnp.array([3, 4, 0], jnp.int32), jnp.int32(2))
    for token in (5, 11, 5):
        state = made.advance(state, jnp.int32(token), jnp.zeros(12), {})
    want = np.zeros(12)
    want[[5, 11]] = -1.0, -0.5
    np.testing.assert_array_equal(made.apply(state, jnp.zeros(12), {}), want)


def _definition(golden, alpha):
    tokens, prompt = golden["tokens"], int(golden["prompt"])
    want = golden["logits"].copy()
    for row, text in zip(want, tokens):
        row -= np.float32(alpha) * np.bincount(text[prompt:], minlength=len(row))
    return want


def test_equals_the_definition(run, golden):
    want = _definition(golden, 0.7)
    got = run(frequency_penalty.transform(0.7, want.shape[1]))
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


def test_a_second_time_counts():
    """Planted: the presence penalty in its place counts once."""
    made = frequency_penalty.transform(0.5, 4), presence_penalty.transform(0.5, 4)
    found = []
    for one in made:
        state = one.init(jnp.zeros(1, jnp.int32), jnp.int32(1))
        for _ in range(2):
            state = one.advance(state, jnp.int32(2), jnp.zeros(4), {})
        found.append(float(one.apply(state, jnp.zeros(4), {})[2]))
    assert found == [-1.0, -0.5]


@pytest.mark.parametrize("penalty", [float("nan"), float("inf"), 1e9])
def test_refuses(penalty):
    with pytest.raises(MethodError, match="usual values"):
        frequency_penalty.transform(penalty, 8)
