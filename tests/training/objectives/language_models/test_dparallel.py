"""dParallel's views and its two terms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.errors import ConfigError
from tests.training.objectives.language_models.test_masked_diffusion import (
    LENGTH,
    SHAPE,
    batch,
    params,
)
from training.objectives.language_models import dparallel

__all__ = ["params"]  # a fixture


def test_views_are_complementary():
    """Both masks make one block of the answer; what is behind is masked in both.

    Planted: views drawn apart, which leave tokens out and take others twice.
    """
    tokens = batch(64)["tokens"][:, :-1]
    may = jnp.broadcast_to(jnp.arange(LENGTH) >= 3, tokens.shape)
    both = dparallel.views(tokens, may, jnp.arange(64), 10, 4, 0)
    a, b = np.asarray(both.masked)
    assert not (a & b).any()
    active = a | b
    begins = set()
    for row, shown in zip(active, np.asarray(both.tokens).swapaxes(0, 1)):
        (at,) = np.nonzero(row)
        begins.add(int(at[0]))
        assert at.tolist() == list(range(at[0], min(at[0] + 4, LENGTH)))
        assert (shown[:, at[-1] + 1 :] == 10).all() and (shown[:, :3] < 10).all()
    assert begins == {3, 7, 11}
    other = dparallel.views(tokens, may, jnp.arange(64), 10, 4, 1)
    apart = both.masked[0] & other.masked[1]
    assert apart.any()


def test_wrong_tokens_get_no_gradient_from_the_entropy():
    """Planted: the entropy of all masked tokens."""
    logits = jnp.asarray([[[2.0, 1.0, -jnp.inf], [2.0, 1.0, 0.5], [0.0, 3.0, 0.0]]])
    tokens = jnp.asarray([[0, 1, 1]])  # right, wrong, right but not masked
    masked = jnp.asarray([[True, True, False]])
    certainty = lambda z: dparallel.terms(z, tokens, masked, 0.5)[1]
    gradient = jax.grad(certainty)(logits)
    assert jnp.isfinite(gradient).all()
    assert (gradient[0, 1:] == 0).all() and jnp.abs(gradient[0, 0]).max() > 0.01
    p = np.exp([4.0, 2.0])
    p /= p.sum()
    assert float(certainty(logits)) == pytest.approx(-(p * np.log(p)).sum(), rel=1e-5)
    planted = jax.grad(lambda z: (dparallel.entropy(z, 0.5) * masked).sum())(logits)
    assert jnp.abs(planted[0, 1]).max() > 0.01


def test_without_entropy_it_is_plain_training(params):
    """The loss is CE + weight * entropy; one program's metrics give both."""
    data = batch(2)
    data["loss_mask"] = jnp.broadcast_to(jnp.arange(LENGTH + 1) >= 3, (2, LENGTH + 1))
    losses = {}
    for weight in (0.0, 2.0):
        objective = dparallel.objective(SHAPE, weight, block=4)
        losses[weight], metrics = jax.jit(objective.loss)(params, data, None)
    assert float(losses[0.0]) == pytest.approx(float(metrics["nats"]), rel=1e-6)
    gap = float(losses[2.0] - losses[0.0])
    assert gap == pytest.approx(2 * float(metrics["entropy"]), rel=1e-4)


def test_settings_are_checked():
    with pytest.raises(ConfigError, match="temperature=0"):
        dparallel.objective(SHAPE, temperature=0)
