"""Hashed noise: uniform, standard Gumbel, and a function of its parts alone."""

import jax.numpy as jnp
import numpy as np
import pytest

from decoding.cache_eviction import hashed

pytestmark = pytest.mark.kv

N = 20_000


def distance(x: np.ndarray, law) -> float:
    """The largest distance of the empirical distribution from `law`."""
    x = np.sort(x)
    return float(np.abs(np.arange(1, len(x) + 1) / len(x) - law(x)).max())


def test_laws():
    """Kolmogorov and Smirnov, n = 20,000, level 1e-4: 2.23 / sqrt(n).

    Planted: the parts without the hash.
    """
    slots = jnp.arange(N)
    limit = 2.23 / N**0.5
    assert distance(np.asarray(hashed.uniform(3, 1, slots)), lambda x: x) < limit
    gumbel = np.asarray(hashed.gumbel(3, 1, slots))
    assert distance(gumbel, lambda x: np.exp(-np.exp(-x))) < limit
    assert distance(np.asarray(slots / N) ** 2, lambda x: x) > limit


def test_parts():
    """Every part counts, and their order; neighbours are not correlated."""
    slots = jnp.arange(N)
    one = np.asarray(hashed.uniform(0, 1, slots))
    for other in (hashed.uniform(1, 0, slots), hashed.uniform(0, 2, slots)):
        assert abs(np.corrcoef(one, np.asarray(other))[0, 1]) < 4 / N**0.5
    assert abs(np.corrcoef(one[1:], one[:-1])[0, 1]) < 4 / N**0.5
    assert (np.asarray(hashed.uniform(0, 1, slots)) == one).all()
    assert one.min() > 0 and one.max() < 1
