"""decoding/transforms/mirostat.py: its identity, its target, the official code."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from decoding import base
from decoding.transforms import mirostat, top_k
from models.errors import MethodError

VOCAB, STEPS, LAST = 2000, 500, 200


def zipf(s: float) -> jax.Array:
    return -s * jnp.log(jnp.arange(1, VOCAB + 1, dtype=jnp.float32))


def followed(transform, logits, seed: int = 0, reset: bool = False):
    """Surprises in bits under the uncut law, and the states, of 500 draws."""
    first = transform.init(jnp.zeros(1, jnp.int32), jnp.int32(1))

    def step(state, key):
        cut = transform.apply(state, logits, {})
        token = jax.random.categorical(key, cut)
        surprise = -jax.nn.log_softmax(logits)[token] / jnp.log(2.0)
        moved = state
        if transform.advance is not None and not reset:
            moved = transform.advance(state, token, logits, {})
        return moved, surprise

    keys = jax.random.split(jax.random.key(seed), STEPS)
    last, surprises = jax.jit(lambda: lax.scan(step, first, keys))()
    return np.asarray(surprises, np.float64), first, last


def drift(transform, logits, surprises, first, last) -> float:
    """Relative gap of sum(S - tau) to (mu_0 - mu_T) / rate."""
    row = first.row
    want = (float(row.bound) - float(last.row.bound)) / float(row.rate)
    got = (surprises - float(row.target)).sum()
    return abs(got - want) / max(abs(want), 1.0)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("rate", [1.0, 0.1])
def test_the_sum_of_errors_is_the_bound_s_way(version, rate):
    """To 1e-4: float32 sums of 500 terms."""
    transform = mirostat.transform(3.0, rate, version)
    run = followed(transform, zipf(1.25))
    assert drift(transform, zipf(1.25), *run) < 1e-4
    reset = followed(transform, zipf(1.25), reset=True)  # planted: mu never moves
    assert drift(transform, zipf(1.25), *reset) > 1e-2


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("target", [2.0, 3.0, 4.0])
def test_the_target_is_held(version, target):
    """Mean surprise of the last 200 of 500 tokens within 0.1 bit, seed 0.

    The entropy of this law of Zipf is 5.0 bits, its best token's surprise 1.9.
    """
    law = jax.nn.softmax(zipf(1.25))
    entropy = float(-(law * jnp.log2(law)).sum())
    assert -np.log2(float(law[0])) < target < entropy
    surprises, *_ = followed(mirostat.transform(target, 1.0, version), zipf(1.25))
    assert abs(surprises[-LAST:].mean() - target) < 0.1


def test_fault_a_fixed_cut():
    """Planted: top-50 holds one surprise, whatever the target is."""
    fixed, *_ = followed(top_k.transform(50), zipf(1.25))
    mean = fixed[-LAST:].mean()
    assert sum(abs(mean - target) > 0.1 for target in (2.0, 3.0, 4.0)) >= 2


def official(p: np.ndarray, bound: float) -> int:
    """The number of tokens kept, in the official code's words."""
    step = [np.log((i + 2) / (i + 1)) for i in range(100)]
    fall = [np.log(p[i] / p[i + 1]) for i in range(100)]
    s = np.dot(fall, step) / np.dot(step, step)
    gap = s - 1
    k = (gap * 2**bound / (1 - len(p) ** -gap)) ** (1 / s)
    return int(np.clip(round(k) + 1, 1, len(p)))


def test_the_number_of_tokens_is_the_official_code_s():
    rng, seen = np.random.default_rng(0), set()
    for case in range(40):
        noise = rng.normal(size=VOCAB) * 0.3
        logits = np.sort(np.asarray(zipf(rng.uniform(0.6, 1.8))) + noise)[::-1]
        p = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
        bound = rng.uniform(0, 10)
        s = mirostat.exponent(jnp.asarray(logits, jnp.float32))
        got = int(mirostat.size(jnp.float32(bound), s, VOCAB))
        want = official(p, bound)
        assert abs(got - want) <= max(1, 2e-3 * want), case
        seen.add(want)
    assert len(seen) > 20


def test_laws_without_a_slope():
    """s = 1 has a limit; flat laws and one possible token keep a token at least."""
    limit = int(mirostat.size(jnp.float32(6), jnp.float32(1), VOCAB))
    near = int(mirostat.size(jnp.float32(6), jnp.float32(1.001), VOCAB))
    assert abs(limit - near) <= 1 and limit == round(64 / np.log(VOCAB)) + 1
    for logits in (jnp.zeros(8), jnp.full(8, -jnp.inf).at[3].set(1.0)):
        for version in (1, 2):
            transform = mirostat.transform(version=version)
            state = transform.init(jnp.zeros(1, jnp.int32), jnp.int32(1))
            out = transform.apply(state, logits, {})
            assert np.isfinite(out[3]) and not np.isnan(out).any()


def test_fault_surprise_after_the_cut():
    """Planted: the surprise under the cut law; it never shows an error."""
    transform = mirostat.transform(3.0, version=2)

    def advance(state, token, logits, aux) -> base.State:
        cut = transform.apply(state, logits, aux)
        return transform.advance(state, token, cut, aux)

    wrong = transform._replace(advance=advance)
    run = followed(wrong, zipf(1.25))
    assert drift(wrong, zipf(1.25), *run) > 1e-2


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"target": 0.0}, "target=0.0"),
        ({"rate": -1.0}, "rate=-1.0"),
        ({"version": 3}, "there are 1 and 2"),
    ],
)
def test_refuses(fields, words):
    with pytest.raises(MethodError, match=words):
        mirostat.transform(**fields)
