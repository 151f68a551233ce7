"""Kept layers: a bias of slots moves with them, in both forms of attention."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding.conformance import peaked
from models import base
from models.cache_layouts import kept, kv_cache
from models.transformer import cached_attention

CONFIG = peaked.config()
SLOTS, B, G, R, DIM = 48, 2, peaked.GROUPS, peaked.HEADS // peaked.GROUPS, peaked.DIM
LENGTH = np.array([20, 33])  # committed slots, before a node of its own


def layer(seed: int = 0) -> kept.KeptLayer:
    """A layer of random keys and values, in which all slots in use have a bias."""
    rng = np.random.default_rng(seed)
    store = kv_cache.dense(1, B, SLOTS, G, DIM, jnp.float32).layers[0]
    store = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape)), store)
    places, first = kept.LayerSizes(SLOTS, SLOTS), jnp.zeros((B,), jnp.int32)
    own = ({}, {}, (first, first))
    empty = kept.layer(store, places, SLOTS, (R, DIM), first, *own, biased=True)
    used = np.arange(SLOTS) < LENGTH[:, None, None]
    bias = np.where(used, np.log(rng.integers(1, 9, (B, G, SLOTS))), 0)
    pos = np.broadcast_to(np.where(used, np.arange(SLOTS), -1), bias.shape)
    return empty.replace(
        bias=jnp.asarray(bias, jnp.float32), pos=jnp.asarray(pos, jnp.int32)
    )


def queries() -> np.ndarray:
    return np.random.default_rng(1).normal(size=(B, 1, G, R, DIM))


def attended(held: kept.KeptLayer, length=LENGTH) -> np.ndarray:
    """Let a node behind `length` slots attend: [B, G, R, d]."""
    pos = jnp.tile(jnp.arange(SLOTS, dtype=jnp.int32), (B, 1))
    at = jnp.asarray(length, jnp.int32) + held.shift
    cache = kv_cache.KVCache((held,), pos, at)
    bits = jnp.ones((B, 1, 1), jnp.uint32)
    seen, none = base.Visibility(at, bits), jnp.zeros((B, 1), jnp.int32)
    block = base.Block(none, at[:, None], at[:, None], seen)
    q = jnp.asarray(queries(), jnp.float32)
    out = cached_attention.over_cache(CONFIG, block, cache, "xla")(0)(q, held)
    return np.asarray(out, np.float64).reshape(B, G, R, DIM)


def oracle(held: kept.KeptLayer, length=LENGTH) -> np.ndarray:
    k, v, bias = (np.asarray(x, np.float64) for x in (*held.store.read(), held.bias))
    out = np.zeros((B, G, R, DIM))
    for b, g, r in np.ndindex(B, G, R):
        n = length[b] + 1
        p = np.exp(k[b, g, :n] @ queries()[b, 0, g, r] + bias[b, g, :n])
        out[b, g, r] = p @ v[b, g, :n] / p.sum()
    return out


@pytest.mark.parametrize("limit", [4096, 0])
def test_both_forms_add_the_bias(monkeypatch, limit):
    """Planted: the bias of the other KV head, and none."""
    monkeypatch.setattr(cached_attention, "LONG", limit)
    held = layer()
    error = lambda held: np.abs(attended(held) - oracle(layer())).max()
    assert error(held) < 1e-5
    assert error(held.replace(bias=held.bias[:, ::-1])) > 0.1
    assert error(held.replace(bias=None)) > 0.1


def test_the_bias_moves_with_its_slot():
    """Every third slot stays, then rows change; planted: the bias stays behind."""
    held = layer()
    index = jnp.broadcast_to(jnp.arange(0, SLOTS, 3), (B, G, SLOTS // 3))
    count = jnp.asarray(-(-LENGTH // 3), jnp.int32)
    fewer = held.keep(index, count, jnp.asarray(LENGTH, jnp.int32))
    np.testing.assert_array_equal(
        fewer.bias,
        np.where(np.arange(SLOTS // 3) < count[:, None, None], held.bias[:, :, ::3], 0),
    )
    found, expected = attended(fewer, count), oracle(fewer, np.asarray(count))
    assert np.abs(found - expected).max() < 1e-5
    behind = fewer.replace(bias=held.bias[:, :, : SLOTS // 3])
    assert np.abs(attended(behind, count) - expected).max() > 0.1
    rows = fewer.gather(jnp.array([1, 0]))
    np.testing.assert_array_equal(rows.bias, fewer.bias[::-1])
    assert rows.resized(count).bias.shape == (B, G, SLOTS)


def test_a_bias_is_laid_out_as_its_heads():
    names = layer().axes()
    assert names.bias == names.pos
    assert layer().replace(bias=None).axes().bias is None
