"""decoding/transforms/gedi.py against the official code's steps, in numpy."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from decoding.transforms import gedi
from models.errors import MethodError
from tests.decoding.transforms.samplers import run

VOCAB = 12


def logits(seed: int) -> tuple[np.ndarray, dict]:
    rng = np.random.default_rng(seed)
    z, wanted, other = rng.normal(size=(3, VOCAB)) * 2
    return z, {"desired": wanted, "anti": other}


def desired(aux, sums, count: int, scale=1.0, bias=0.0) -> np.ndarray:
    """log P(desired) of every token."""
    p = special.log_softmax(np.stack([aux["desired"], aux["anti"]]), -1)
    classes = (sums[:, None] + p) / (count + 1) * scale + np.array([[bias], [0]])
    return special.log_softmax(classes, 0)[0]


def guided(z, aux, sums, count, omega=30, filter_p=0.8, target_p=0.8, **fields):
    """The official code's next-token logits: sorted, cut by two rules."""
    logp = desired(aux, sums, count, **fields)
    mixed = special.log_softmax(z) + omega * logp
    order = np.argsort(logp)
    below = np.cumsum(special.softmax(mixed)[order]) < filter_p
    dropped = order[below & (logp[order] < np.log(target_p))]
    out = mixed.copy()
    out[dropped] = -np.inf
    return out


def walked(tokens=(3, 5, 5), forget: bool = False, seed: int = 0, **fields):
    """(ours, official) after a text, each step with logits of its own."""
    transform = gedi.transform(**fields)
    state = transform.init(jnp.zeros(1, jnp.int32), jnp.int32(1))
    sums = np.zeros(2)
    for at, token in enumerate(tokens):
        z, aux = logits(seed + at)
        state = transform.advance(
            state, jnp.int32(token), jnp.asarray(z), {} if forget else as_jax(aux)
        )
        sums += special.log_softmax(np.stack([aux["desired"], aux["anti"]]), -1)[
            :, token
        ]
    z, aux = logits(seed + 50)
    ours = transform.apply(state, jnp.asarray(z, jnp.float32), as_jax(aux))
    names = {"class_bias": "bias"}
    given = {names.get(k, k): v for k, v in fields.items()}
    return np.asarray(ours), guided(z, aux, sums, len(tokens), **given)


def as_jax(aux) -> dict:
    return {name: jnp.asarray(x, jnp.float32) for name, x in aux.items()}


def same(ours, official) -> bool:
    live = np.isfinite(official)
    if (np.isfinite(ours) != live).any():
        return False
    return np.allclose(ours[live], official[live], rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("tokens", [(), (3,), (3, 5, 5, 1)], ids=len)
@pytest.mark.parametrize(
    "fields",
    [{}, {"omega": 5.0, "filter_p": 0.5}, {"class_bias": 2.0, "scale": 10.0}],
    ids=["paper", "weak", "biased"],
)
def test_equals_the_official_steps(tokens, fields):
    cut = 0
    for seed in range(8):
        ours, official = walked(tokens, seed=seed, **fields)
        assert same(ours, official)
        cut += np.isneginf(official).sum()
    assert cut > 4


def test_fault_classes_that_forget_the_text():
    """Planted: `advance` without the streams; the two streams swapped."""
    assert not all(same(*walked(seed=s, forget=True)) for s in range(8))
    z, aux = logits(0)
    swapped = {"desired": aux["anti"], "anti": aux["desired"]}
    transform = gedi.transform()
    both = [run(transform, z, aux=as_jax(a)) for a in (aux, swapped)]
    assert not same(*both)


def test_without_weight_or_difference_it_is_the_target():
    z, aux = logits(1)
    off = run(gedi.transform(omega=0.0, filter_p=0.0), z, aux=as_jax(aux))
    np.testing.assert_allclose(off, special.log_softmax(z), atol=1e-5)
    equal = {"desired": aux["desired"], "anti": aux["desired"]}
    out = run(gedi.transform(), z, aux=as_jax(equal))
    np.testing.assert_allclose(special.softmax(out), special.softmax(z), atol=1e-5)
    np.testing.assert_array_equal(run(gedi.transform(), z), np.float32(z))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"omega": -1.0}, "omega=-1.0"),
        ({"scale": float("inf")}, "scale=inf"),
        ({"filter_p": 1.2}, "filter_p=1.2"),
        ({"target_p": -0.1}, "target_p=-0.1"),
    ],
)
def test_refuses(fields, words):
    with pytest.raises(MethodError, match=words):
        gedi.transform(**fields)
