"""decoding/transforms/presence_penalty.py."""

import jax.numpy as jnp
import numpy as np
import pytest

from decoding.transforms import frequency_penalty, presence_penalty
from models.errors import MethodError


def _after(made, generated, vocab=12):
    state = made.init(jnp.array([3, 4, 0], jnp.int32), jnp.int32(2))
    for token in generated:
        state = made.advance(state, jnp.int32(token), jnp.zeros(vocab), {})
    return np.asarray(made.apply(state, jnp.zeros(vocab), {}))


def test_by_hand_counts_once_and_not_the_prompt():
    want = np.zeros(12)
    want[[5, 11]] = -0.5
    np.testing.assert_array_equal(
        _after(presence_penalty.transform(0.5, 12), [5, 11, 5]), want
    )
    # Planted: the other penalty. The check tells the two apart.
    other = _after(frequency_penalty.transform(0.5, 12), [5, 11, 5])
    assert (other != want).any()


def test_equals_the_definition(run, golden):
    tokens, prompt = golden["tokens"], int(golden["prompt"])
    want = golden["logits"].copy()
    for row, text in zip(want, tokens):
        row[np.unique(text[prompt:])] -= np.float32(0.7)
    got = run(presence_penalty.transform(0.7, want.shape[1]))
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("penalty", [float("nan"), float("inf"), -1e9])
def test_refuses(penalty):
    with pytest.raises(MethodError, match="usual values"):
        presence_penalty.transform(penalty, 8)
