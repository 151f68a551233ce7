"""ActQKV: probes of unusual queries, cosines with blocks, a cut by entropy."""

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from decoding import Spec
from decoding.caches import actqkv
from models.errors import MethodError
from tests.decoding.caches import reading

pytestmark = pytest.mark.kv

BLOCK, PARTS, WINDOW = 4, 2, 4
FIELDS = {
    "budget": 16,
    "block": BLOCK,
    "parts": PARTS,
    "first": 4,
    "local": 4,
    "least": 1,
    "window": WINDOW,
    "full": 1,
}
SPEC = Spec("caches/actqkv", **FIELDS)


def brief(x):
    return np.asarray(x).astype(ml_dtypes.bfloat16).astype(np.float64)


def blocks(q, k, start, least=1):
    """Return the blocks before `start` that the probe q [R, d] selects."""
    count, most = start // BLOCK, 16 // BLOCK - 1
    if count == 0:
        return []
    means = k[:start].reshape(count, PARTS, BLOCK // PARTS, -1).mean(2)
    products = np.einsum("rd,pcd->pc", q, means)
    size = np.sqrt((q**2).sum() * len(q)) * np.linalg.norm(means, axis=-1)
    scores = brief((products / size).max(-1)[1:])
    most -= 1  # the first block
    share = np.exp(scores - scores.max()) if len(scores) else scores
    share = share / share.sum()
    keep = len(scores)
    if keep > most:
        entropy = -(share * np.log(share)).sum() / np.log(keep)
        keep = int(
            np.round(min(least, most) + brief(entropy) * (most - min(least, most)))
        )
    return [0, *(1 + p for p in reading.best(scores, keep))]


def reads(texts, g, t, least=1, first=True):
    start = t // BLOCK * BLOCK
    found = blocks(texts.q[1][t, g], texts.k[1][:, g], start, least)
    found = found if first else found[1:]
    return [*(p * BLOCK + i for p in found for i in range(BLOCK)), *range(start, t + 1)]


def weighted(texts, g, n, equal=False):
    """Return the probe of the last queries of n tokens."""
    begin = max(texts.prompt - 1 - WINDOW, 0)
    q = texts.q[1][begin:n, g]
    mean, spread = q.mean(0), q.var(0)
    last = texts.q[1][max(n - WINDOW, begin) : n, g]
    bias = ((last - mean) ** 2 / (spread + spread.mean() / 100)).mean((1, 2))
    weight = np.full(len(last), 1 / len(last)) if equal else bias / bias.sum()
    return (weight[:, None, None] * last).sum(0)


def chooser(equal):
    def select(texts, g, n):
        start = n // BLOCK * BLOCK
        found = blocks(weighted(texts, g, n, equal), texts.k[1][:, g], start)
        return [p * BLOCK + i for p in found for i in range(BLOCK)], start

    return reading.listed(select, 8)


def test_it_reads_the_nearest_blocks():
    """Planted: the first block is one of many; no cut by entropy."""
    assert reading.gap(SPEC, reads) < reading.CLOSE
    assert reading.gap(SPEC, lambda *at: reads(*at, first=False)) > 10 * reading.CLOSE


def test_a_list_is_that_of_the_probe():
    """Planted: the mean query."""
    spec = Spec("caches/actqkv", **FIELDS, refresh=8)
    assert reading.gap(spec, chooser(False)) < reading.CLOSE
    assert reading.gap(spec, chooser(True)) > 10 * reading.CLOSE


def test_equal_weights_make_the_mean_query():
    """Weights sum to 1; planted: a query that is not like the others."""
    rng = np.random.default_rng(0)
    q = jnp.asarray(rng.choice([-1.0, 1.0], size=(1, 5, 2, 2, 8)), jnp.float32)
    valid = jnp.asarray([[True] * 4 + [False]])
    zero, one = jnp.zeros((1, 2, 2, 8)), jnp.ones((1, 2, 2, 8))
    mean = q[:, :4].mean(1)
    np.testing.assert_allclose(actqkv.probe(q, valid, zero, one), mean, atol=1e-6)
    same = jnp.broadcast_to(q[:, :1], q.shape)
    np.testing.assert_allclose(actqkv.probe(same, valid, zero, one), q[:, 0], atol=1e-6)
    odd = q.at[:, 0].multiply(3.0)
    gap = actqkv.probe(odd, valid, zero, one) - odd[:, :4].mean(1)
    assert np.abs(gap).max() > 0.1


def test_more_entropy_keeps_more_blocks():
    """None is cut where the budget holds all; planted: `least` for each."""
    free = jnp.ones((1, 1, 1, 16), bool)
    flat = jnp.zeros((1, 1, 1, 16))
    peak = flat.at[..., 3].set(20.0)
    count = lambda s, most: int(
        actqkv.entropy_cut(s, free, jnp.asarray([most]), 2).sum()
    )
    assert (count(flat, 8), count(peak, 8)) == (8, 2)
    assert count(peak, 16) == 16 != 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"parts": 5}, "block=32, parts=5, local=512: use"),
        ({"local": 40}, "local=40: use"),
        ({"first": 40}, "first=40, least=32"),
        ({"window": 0}, "window=0"),
    ],
)
def test_bad_numbers(arguments, words):
    with pytest.raises(MethodError, match=words):
        Spec("caches/actqkv", **arguments).build({})
