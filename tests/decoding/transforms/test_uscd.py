"""decoding/transforms/uscd.py against the official code's steps, in numpy."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from decoding.transforms import uscd
from models.errors import MethodError
from tests.decoding.transforms.samplers import run

VOCAB = 16


def official(z, lame, mu: float, fraction: float, weight: float = 0.7) -> np.ndarray:
    """The official processor's scores: deviation, mask, mixture of probabilities."""
    p, q = special.softmax(z), special.softmax(lame)
    with np.errstate(all="ignore"):
        if p.std() > mu:
            return np.log(p)
        left = np.where(p >= p.mean() * fraction, p - weight * q, 0)
        return np.where(left > 0, np.log(left), -np.inf)


def bar(mu: float) -> float:
    """The deviation mu over V as a sum of squares."""
    return mu**2 * VOCAB + 1 / VOCAB


def pairs():
    rng = np.random.default_rng(0)
    for _ in range(60):
        yield rng.normal(size=(2, VOCAB)) * rng.uniform(0.2, 4)


def differences(certainty: float, fraction: float, mu: float, **fields) -> int:
    transform = uscd.transform(certainty, fraction, **fields)
    count = 0
    for z, lame in pairs():
        out = run(transform, z, aux={"lame": jnp.asarray(lame, jnp.float32)})
        want = official(z, lame, mu, fraction)
        if not np.isfinite(want).any():
            want = np.log(special.softmax(z))
        ours = special.softmax(out)
        count += not np.allclose(ours, special.softmax(want), atol=2e-5)
    return count


@pytest.mark.parametrize("fraction", [1 / 3, 2 / 3])
def test_equals_the_official_steps(fraction):
    mu = 0.11  # some of the pairs are certain, some not
    gates = [special.softmax(z).std() > mu for z, _ in pairs()]
    assert 10 < sum(gates) < 50
    assert differences(bar(mu), fraction, mu) == 0


def test_fault_another_gate_or_mixture():
    """Planted: always contrasted; logits in the place of probabilities' weight."""
    assert differences(1.0, 1 / 3, 0.11) > 10
    assert differences(bar(0.11), 1 / 3, 0.11, weight=0.3) > 10


def test_the_gate_by_hand():
    p = np.log([0.46, 0.14, 0.1, 0.1, 0.1, 0.1])  # sum of squares 0.2712
    lame = jnp.log(jnp.asarray([0.9, *[0.02] * 5]))
    for certainty, is_plain in ((0.27, True), (0.272, False)):
        out = run(uscd.transform(certainty), p, aux={"lame": lame})
        assert np.allclose(out, p) == is_plain
    assert np.isneginf(out[0])  # 0.46 - 0.7 * 0.9 is negative: the best is lost


def test_equal_prompts_and_no_weight_keep_the_law():
    z = np.linspace(0, 1, VOCAB)
    for weight, lame in ((0.7, z), (0.0, -z)):
        transform = uscd.transform(1.0, 0.0, weight)
        out = run(transform, z, aux={"lame": jnp.asarray(lame, jnp.float32)})
        np.testing.assert_allclose(special.softmax(out), special.softmax(z), atol=1e-6)
    np.testing.assert_array_equal(run(uscd.transform(), z), np.float32(z))


def test_where_nothing_is_left_it_is_the_target():
    z = np.log([0.5, 0.5])
    aux = {"lame": jnp.asarray(z, jnp.float32)}
    np.testing.assert_allclose(run(uscd.transform(1.0, weight=1.0), z, aux=aux), z)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"certainty": 1.1}, "certainty=1.1"),
        ({"fraction": -1.0}, "fraction=-1.0"),
        ({"weight": float("inf")}, "weight=inf"),
    ],
)
def test_refuses(fields, words):
    with pytest.raises(MethodError, match=words):
        uscd.transform(**fields)
