"""The schedule by hand, and Muon's steps."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from models.errors import ConfigError
from training.loop import (
    optimizers,
)


def test_schedule_by_hand() -> None:
    """Peak 8, warm-up 3, decay 4 of 12 steps; longer runs agree until the decay."""
    schedule = optimizers.warmup_stable_decay(8.0, 12, 3, 4)
    rates = [float(schedule(i)) for i in range(13)]
    assert rates == [2.0, 4.0, 6.0, 8.0, 8.0, 8.0, 8.0, 8.0, 8.0, 6.0, 4.0, 2.0, 0.0]
    longer = optimizers.warmup_stable_decay(8.0, 20, 3, 4)
    assert [float(longer(i)) for i in range(9)] == rates[:9]
    with pytest.raises(ConfigError, match="exceed steps=6"):
        optimizers.warmup_stable_decay(8.0, 6, 3, 4)


def muon_moves(up: jax.Array) -> np.ndarray:
    """The first update of a gate-up weight, without Muon's sqrt(fan-out / fan-in)."""
    params = {"layer_0": {"up": up}, "embedding": {"tokens": jnp.ones((16, 8))}}
    muon = optimizers.muon(optax.constant_schedule(1.0), optax.constant_schedule(0.1))
    updates, _ = jax.jit(muon.update)(params, muon.init(params), params)
    adam = np.asarray(updates["embedding"]["tokens"])
    first = 0.9 * 0.1 / (1 - 0.9**2) + 1  # Nesterov, bias-corrected
    np.testing.assert_allclose(adam, -0.1 * first, rtol=1e-3)
    return np.asarray(updates["layer_0"]["up"]) / np.sqrt(3)


def test_muon_orthogonalises_gate_and_up_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Singular values near 1 in both halves, though one gradient is 50 times larger."""
    up = jax.random.normal(jax.random.key(0), (8, 2, 24))
    up = up * jnp.asarray([1.0, 50.0])[:, None]

    def least(moved: np.ndarray) -> float:
        halves = [np.linalg.svd(moved[:, i], compute_uv=False) for i in range(2)]
        return min(values.min() for values in halves)

    assert least(muon_moves(up)) > 0.6
    together = optimizers.Dims(reduction_axis=0, output_axis=(1, 2))  # planted fault
    monkeypatch.setitem(optimizers.MATRICES, "up", together)
    assert least(muon_moves(up)) < 0.6
