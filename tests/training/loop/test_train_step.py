"""One step: accumulation, clipping, averages, mixed precision."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from models.errors import ConfigError
from training.loop import (
    train_step,
)


def quadratic() -> train_step.Objective:
    """Mean over rows of (w x - y)^2 with a weight a row."""

    def loss(params, batch, target_out):
        error = (params["w"] * batch["x"] - batch["y"]).sum(1)
        total = batch["weight"].sum()
        return (batch["weight"] * error**2).sum() / total, {"error": error.mean()}

    return train_step.Objective(loss, weight=lambda batch: batch["weight"].sum())


def rows(seed: int, count: int = 8) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "x": rng.normal(size=(count, 3)).astype(np.float32),
        "y": rng.normal(size=(count, 3)).astype(np.float32),
        "weight": rng.uniform(0.1, 3.0, count).astype(np.float32),
    }


def first_state(optimizer: optax.GradientTransformation, ema: bool = False):
    params = {"w": jnp.asarray([0.3, -0.2, 0.9])}
    average = params if ema else None
    return train_step.TrainState(jnp.int32(0), params, optimizer.init(params), average)


def weights_after(objective: train_step.Objective, rows_at_once: int) -> np.ndarray:
    optimizer = optax.sgd(0.1)
    step = jax.jit(train_step.make_step(objective, optimizer, rows_at_once))
    state = first_state(optimizer)
    for seed in range(5):
        state, _ = step(state, rows(seed))
    return np.asarray(state.params["w"])


def test_accumulation_is_the_large_batch() -> None:
    """To 2e-6: float32 sums of 8 rows of order 1 in another order, over 5 steps."""
    whole = weights_after(quadratic(), 0)
    for rows_at_once in (1, 2, 4):
        parts = weights_after(quadratic(), rows_at_once)
        np.testing.assert_allclose(parts, whole, atol=2e-6)
    unweighted = quadratic()._replace(weight=lambda batch: 1.0)  # planted fault
    assert np.abs(weights_after(unweighted, 2) - whole).max() > 1e-3


def test_rows_at_once_must_divide_the_batch() -> None:
    step = train_step.make_step(quadratic(), optax.sgd(0.1), 3)
    with pytest.raises(ConfigError, match="rows_at_once=3"):
        step(first_state(optax.sgd(0.1)), rows(0))


def test_clip_and_average() -> None:
    optimizer = optax.sgd(1.0)
    step = train_step.make_step(quadratic(), optimizer, clip=0.01, ema=0.75)
    before = first_state(optimizer, ema=True)
    after, metrics = step(before, rows(0))
    moved = after.params["w"] - before.params["w"]
    assert metrics["grad_norm"] > 0.01
    np.testing.assert_allclose(jnp.linalg.norm(moved), 0.01, rtol=1e-5)
    wanted = 0.75 * before.params["w"] + 0.25 * after.params["w"]
    np.testing.assert_allclose(after.ema["w"], wanted, rtol=1e-6)
    assert np.abs(after.params["w"] - wanted).max() > 1e-4  # a copy would be caught


def test_mixed_precision_keeps_small_updates() -> None:
    """The loss sees rounded params, frozen ones too; what is learned is not rounded.

    A step of 0.001 is a quarter of bfloat16's spacing below 1: ten of them in float32
    are 0.01 to 2e-6 (ten roundings), in bfloat16 none at all, which is the fault.
    """
    seen = []

    def loss(params, batch, frozen):
        seen.append((params["w"].dtype, frozen["v"].dtype, frozen["n"].dtype))
        return (params["w"] * frozen["v"] * batch["x"]).sum(), {}

    def moved(dtype, compute_dtype):
        params, optimizer = {"w": jnp.ones(3, dtype)}, optax.sgd(0.001)
        frozen = {"v": jnp.ones(3), "n": jnp.arange(3)}
        state = train_step.TrainState(
            jnp.int32(0), params, optimizer.init(params), None
        )
        step = train_step.make_step(
            train_step.Objective(loss),
            optimizer,
            1,
            target=lambda frozen, batch: frozen,
            compute_dtype=compute_dtype,
        )
        for _ in range(10):
            state, metrics = jax.jit(step)(state, {"x": jnp.ones((2, 3))}, frozen)
        assert metrics["grad_norm"].dtype == jnp.float32
        assert state.params["w"].dtype == dtype
        return np.asarray(1 - state.params["w"], np.float32)

    np.testing.assert_allclose(moved(jnp.float32, "bfloat16"), 0.01, atol=2e-6)
    kinds = {tuple(str(x) for x in found) for found in seen}
    assert kinds == {("bfloat16", "bfloat16", "int32")}
    assert not moved(jnp.bfloat16, "").any()  # planted: no float32 copy
    with pytest.raises(ConfigError, match="compute_dtype='float8'"):
        train_step.make_step(quadratic(), optax.sgd(0.1), compute_dtype="float8")
