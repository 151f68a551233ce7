"""decoding/transforms/ban_tokens.py."""

import jax.numpy as jnp
import numpy as np
import pytest

from decoding.transforms import ban_tokens
from models.errors import MethodError


def _bans(golden):
    return [[int(t) for t in ban if t >= 0] for ban in golden["bans"]]


def test_equals_hf(parity, golden):
    parity("ban_tokens/", ban_tokens.transform(_bans(golden), 101))


def test_fault_a_text_that_is_not_followed(parity, golden):
    good = ban_tokens.transform(_bans(golden), 101)
    with pytest.raises(AssertionError):
        parity("ban_tokens/", good._replace(advance=None))


def test_a_prefix_in_the_prompt_counts_and_padding_does_not():
    made = ban_tokens.transform([(7, 8, 9), (0, 1)], 12)
    for length, banned in ((2, [9]), (1, []), (3, [1])):
        state = made.init(jnp.array([7, 8, 0, 0], jnp.int32), jnp.int32(length))
        out = made.apply(state, jnp.zeros(12), {})
        np.testing.assert_array_equal(np.flatnonzero(np.isneginf(out)), banned)


def test_single_bans_need_no_memory():
    assert ban_tokens.transform([3, 4], 12).advance is None


def test_leaves_something_finite():
    made = ban_tokens.transform([0], 3)
    state = made.init(jnp.zeros(1, jnp.int32), jnp.int32(1))
    only = jnp.array([1.0, -jnp.inf, -jnp.inf])
    np.testing.assert_array_equal(made.apply(state, only, {}), only)


@pytest.mark.parametrize(
    ("bans", "words"),
    [([12], "no id"), ([(1, -1)], "no id"), ([()], "empty"), (range(12), "leave one")],
)
def test_refuses(bans, words):
    with pytest.raises(MethodError, match=words):
        ban_tokens.transform(bans, 12)
