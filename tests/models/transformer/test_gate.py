"""Nodes that pass a layer: as if the layer had never seen them."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from decoding.conformance import kit, peaked
from models.base import ALL, causal_block
from models.synthetic import toy

NODES, SIZE = 6, 32
TOKENS = jnp.asarray([[1, 5, 3, 2, 6, 4], [2, 2, 1, 0, 3, 5]], jnp.int32)
# Layer 0 is for the first nodes alone: what a node reads is there.
GATE = np.zeros((peaked.LAYERS, 2, NODES), bool)
GATE[0, 0, 3:], GATE[0, 1, 5:] = True, True


def block(gate=None, run=None):
    start, count = jnp.zeros(2, jnp.int32), jnp.full(2, NODES, jnp.int32)
    whole = causal_block(TOKENS, start, count, SIZE, ALL)
    return replace(whole, gate=gate, run=run)


def part(i: int, gate):
    """Node i alone; `gate` bool[L, 2, NODES]."""
    one = causal_block(
        TOKENS[:, i : i + 1], jnp.full(2, i), jnp.ones(2, jnp.int32), SIZE, ALL
    )
    return replace(one, gate=jnp.asarray(gate[:, :, i : i + 1]))


def call(lm, block, cache=None):
    cache = lm.model.init_cache(2, SIZE) if cache is None else cache
    run = jax.jit(lambda params, cache, block: lm.model(params, cache, block))
    return run(lm.params, cache, block)


def test_an_open_gate_is_the_model():
    """Bit for bit, with and without `run`."""
    for lm in (peaked.model(), kit.model()):
        none = jnp.zeros((lm.config.n_layers, 2, NODES), bool)
        every = jnp.ones((lm.config.n_layers, 2), bool)
        plain = call(lm, block())
        assert kit.same(call(lm, block(none)), plain)
        assert kit.same(call(lm, block(none, every)), plain)


def one_by_one(lm, gate):
    cache, logits = lm.model.init_cache(2, SIZE), []
    for i in range(NODES):
        out, cache = call(lm, part(i, gate), cache)
        cache = cache.replace(length=cache.length + 1)
        logits.append(np.asarray(out.logits[:, 0]))
    return np.stack(logits, 1), cache


def test_gates_are_by_node():
    """A block is its nodes one after another; planted: gates of the first node."""
    lm = peaked.model()
    out, cache = call(lm, block(jnp.asarray(GATE)))
    own, after = one_by_one(lm, GATE)
    np.testing.assert_allclose(out.logits, own, atol=1e-4)
    for layer, other in zip(cache.layers, after.layers):
        np.testing.assert_allclose(layer.k, other.k, atol=1e-4)
    k = np.asarray(cache.layers[0].k)
    assert not k[0, :, 3:].any() and k[0, :, :3].any() and k[1, :, 3:5].any()
    first = np.broadcast_to(GATE[:, :, :1], GATE.shape)
    assert np.abs(one_by_one(lm, first)[0] - out.logits).max() > 0.1


def test_the_toy_model_misses_a_key():
    """It finds what a node of a layer cannot read; nested layers leave nothing out."""
    lm = kit.model()
    faulty = lambda gate: np.asarray(
        jax.jit(lambda c, b: lm.model.layers(lm.params, c.open(b), X, b, 0, 2)[0])(
            lm.model.init_cache(2, SIZE), block(jnp.asarray(gate))
        )
    )[..., toy.FAULT]
    X = lm.model.embed(lm.params, TOKENS, TOKENS)
    assert not faulty(GATE).any()
    assert faulty(GATE[:, :, ::-1]).any()  # planted: later nodes take more layers
