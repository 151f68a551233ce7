"""Parity with HF: the golden text of `tests/golden/make_transforms_golden.py`."""

import pathlib
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding import base, tree

GOLDEN = pathlib.Path(__file__).parents[2] / "golden" / "transforms.npz"


@pytest.fixture(scope="session")
def golden() -> dict[str, np.ndarray]:
    """The file of tests/golden/make_transforms_golden.py."""
    with np.load(GOLDEN) as file:
        return dict(file)


def begin(transform, tokens, length) -> base.State:
    """The state after prompts, as the loop makes it."""
    return jax.vmap(transform.init, out_axes=base.ROWS)(
        jnp.asarray(tokens, jnp.int32), jnp.asarray(length, jnp.int32)
    )


def apply_rows(transform, state: base.State, logits) -> jax.Array:
    """`apply` on rows [B, V]."""
    return jax.vmap(
        lambda state, logits: transform.apply(state, logits, {}), in_axes=(base.ROWS, 0)
    )(state, jnp.asarray(logits, jnp.float32))


@pytest.fixture(scope="session")
def run(golden) -> Callable:
    """run(transform) -> float32[R, V]: the golden text, its prompt given to `init`."""

    def go(transform) -> np.ndarray:
        tokens, prompt = golden["tokens"], int(golden["prompt"])
        rows = len(tokens)
        buffer = np.where(np.arange(tokens.shape[1]) < prompt, tokens, 77)
        state = begin(transform, buffer, [prompt] * rows)
        if transform.advance is not None:
            advance = jax.jit(tree.over_rows(transform.advance, 3))
            for column in tokens[:, prompt:].T:
                at = jnp.asarray(column, jnp.int32)
                state = advance(state, at, golden["logits"], {})
        return np.asarray(apply_rows(transform, state, golden["logits"]))

    return go


@pytest.fixture(scope="session")
def parity(golden, run) -> Callable:
    """parity(name, transform): equal to HF's processor; the supports exactly."""

    def check(name: str, transform) -> None:
        want, got = golden[name], run(transform)
        np.testing.assert_array_equal(np.isneginf(got), np.isneginf(want))
        live = ~np.isneginf(want)
        np.testing.assert_allclose(got[live], want[live], rtol=1e-6, atol=1e-6)

    return check
