"""Rows of caches as named arrays: they come back in larger caches of their layout."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.cache_layouts import held, kept, kv_cache, quantized, stored
from models.cache_layouts.stored import Misfit

G, DIM, SEEN = 2, 8, 40
HEADS = (2, DIM)


def filled(cache, seed: int = 0):
    """A cache of two rows whose arrays hold random numbers; both have seen tokens."""
    rng = np.random.default_rng(seed)

    def draw(x):
        if jnp.issubdtype(x.dtype, jnp.floating):
            return jnp.asarray(rng.normal(size=x.shape), x.dtype)
        return jnp.asarray(rng.integers(0, 9, x.shape), x.dtype)

    layers = jax.tree.map(draw, cache.layers)
    pos = jnp.broadcast_to(jnp.arange(cache.size, dtype=jnp.int32), cache.pos.shape)
    return kv_cache.KVCache(layers, pos, jnp.full((2,), SEEN, jnp.int32))


def whole(layers, size: int):
    pos = jnp.full((2, size), -1, jnp.int32)
    return kv_cache.KVCache(layers, pos, jnp.zeros((2,), jnp.int32))


def dense(size: int):
    return kv_cache.dense(2, 2, size, G, DIM, jnp.float32)


def windowed(size: int):
    store = kv_cache.dense(1, 2, size // 2, G, DIM, jnp.float32).layers[0]
    return whole((held.layer(store, size, 8),), size)


def policy(size: int):
    store = kv_cache.dense(1, 2, size // 2, G, DIM, jnp.float32).layers[0]
    places = kept.LayerSizes(size // 2, size // 2, size // 4, 0)
    rows = (jnp.full((2,), size // 2), jnp.full((2,), size // 4))
    about = ({"score": (jnp.float32, ())}, {"raw": (jnp.float32, (3,))}, rows)
    first = jnp.zeros((2,), jnp.int32)
    layer = kept.layer(store, places, size, HEADS, first, *about, biased=True)
    return whole((layer,), size)


def codes(size: int):
    return quantized.int4(32)(1, 2, size, G, DIM, jnp.float32)


LAYOUTS = {"dense": dense, "held": windowed, "kept": policy, "quantized": codes}


def budgets_of(cache, other):
    """Give the kept layers of a cache the budgets of row 1 of another one's."""
    pairs = zip(cache.layers, other.layers)
    same = lambda x, y: (
        x.replace(budget=jnp.full_like(x.budget, y.budget[1]))
        if isinstance(x, kept.KeptLayer)
        else x
    )
    return cache.replace(layers=tuple(same(x, y) for x, y in pairs))


def round_trip(make, size: int, larger: int):
    cache = filled(make(size))
    arrays = stored.pack(cache, 1)
    one = stored.unpack(budgets_of(make(larger), cache), 0, arrays)
    return arrays, stored.pack(jax.tree.map(jnp.asarray, one), 0)


@pytest.mark.parametrize("name", LAYOUTS)
def test_rows_come_back(name):
    """In a cache of the same size and of twice the slots; planted: another row."""
    make = LAYOUTS[name]
    for larger in (128, 256):
        before, after = round_trip(make, 128, larger)
        assert before.keys() == after.keys()
        for key, x in before.items():
            # Which places queries have follows from the tokens they are of.
            if "queries" not in key:
                np.testing.assert_array_equal(x, after[key], key)
    other = stored.pack(filled(make(128)), 0)
    assert not all(np.array_equal(other[key], x) for key, x in before.items())


def test_another_budget_is_told():
    """Slots that were evicted; before that a row of any budget fits."""
    arrays = stored.pack(filled(policy(128)), 1)
    with pytest.raises(Misfit, match="evicted under a budget of"):
        stored.unpack(policy(128), 0, arrays)
    stored.unpack(policy(128), 0, {**arrays, "layers.0.shift": np.int32(0)})


def test_queries_keep_their_tokens():
    """Those from the first token on that the prompt keeps; planted: of a longer one."""
    cache = policy(128)
    (layer,) = cache.layers
    tokens = jnp.broadcast_to(jnp.arange(32, dtype=jnp.int32), (2, 32))
    q = jnp.broadcast_to(tokens[..., None, None, None] * 1.0, layer.queries.q.shape)
    asked = kept.Queries(q, tokens, jnp.zeros((2,), jnp.int32))
    arrays = stored.pack(whole((layer.replace(queries=asked),), 128), 0)
    for first in (0, 20):
        like = kept.Queries(q * 0, tokens * 0 - 1, jnp.full((2,), first, jnp.int32))
        fresh = whole((layer.replace(queries=like),), 128)
        back = stored.unpack(fresh, 0, arrays).layers[0].queries
        want = np.where(np.arange(32) + first < 32, np.arange(32) + first, -1)
        assert back.pos[0].tolist() == want.tolist() and back.first.tolist() == [first]
        assert back.q[0, : 32 - first, 0, 0, 0].tolist() == list(range(first, 32))


def test_what_does_not_fit_is_said():
    arrays = stored.pack(filled(dense(128)), 0)
    with pytest.raises(Misfit, match="keys: the stored row has"):
        stored.unpack(kv_cache.dense(2, 2, 32, G, DIM, jnp.float32), 0, arrays)
    with pytest.raises(Misfit, match="bfloat16"):
        stored.unpack(kv_cache.dense(2, 2, 64, G, DIM, jnp.bfloat16), 0, arrays)
    with pytest.raises(Misfit, match="more"):
        stored.unpack(kv_cache.dense(1, 2, 64, G, DIM, jnp.float32), 0, arrays)
    with pytest.raises(Misfit, match="another layout"):
        stored.unpack(windowed(128), 0, arrays)
    with pytest.raises(Misfit, match="keeps every slot"):
        stored.unpack(dense(128), 0, stored.pack(filled(windowed(128)), 0))
    with pytest.raises(Misfit, match="cannot be stored"):
        stored.pack_layer(object(), 0, 0)


def test_evicted_slots_leave_no_note():
    """The next token in a slot begins at 0; planted: the slots taken as they are."""
    (layer,) = filled(policy(128)).layers
    layer = layer.replace(shift=jnp.zeros((2,), jnp.int32))
    index = jnp.broadcast_to(jnp.arange(64, dtype=jnp.int32)[::-1], (2, G, 64))
    count, length = jnp.full((2,), 5), jnp.full((2,), SEEN)
    after = layer.keep(index, count, length)
    score, old = np.asarray(after.notes["score"]), np.asarray(layer.notes["score"])
    assert (score[..., :5] == old[..., ::-1][..., :5]).all()
    assert not score[..., 5:].any() and old[..., ::-1][..., 5:].any()
