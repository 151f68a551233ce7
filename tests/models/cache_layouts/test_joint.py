"""Keys that hold their values: half the bytes, and the same attention."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kernels.tree_attention import reference
from models import transformer
from models.cache_layouts import joint, kv_cache, quantized
from models.errors import ConfigError
from tests.models import blocks, small

LATENT = transformer.Latent(rank=16, turned=4, plain=8, value=6)
CONFIG = dataclasses.replace(
    small.CONFIG,
    windows=(),
    n_kv_heads=1,
    head_dim=20,
    latent=LATENT,
    attention_scale=12**-0.5,
    ropes=(transformer.rope(4, 100.0),),
)
LM = transformer.transformer(CONFIG)
PARAMS = blocks.numpy_params(LM)
TOKENS = small.random_tokens(0, 2, 12)


def logits(model, size=24) -> np.ndarray:
    return np.asarray(blocks.whole(model, PARAMS, TOKENS, size))


def test_a_slot_has_one_key():
    """`turned + rank` numbers a token and layer; layouts of two arrays have twice."""
    cache = LM.init_cache(1, 10)
    numbers = sum(x.size for x in jax.tree.leaves(cache.layers))
    assert numbers == CONFIG.n_layers * 10 * (LATENT.turned + LATENT.rank)
    assert all(type(layer) is joint.JointLayer for layer in cache.layers)
    twice = kv_cache.dense(CONFIG.n_layers, 1, 10, 1, 20, jnp.float32)
    assert sum(x.size for x in jax.tree.leaves(twice.layers)) == 2 * numbers


def test_cached_text_is_the_expanded_form_s(monkeypatch):
    """The absorbed form over a cache against all heads' keys over the whole text.

    Planted: the value read from the key's beginning, where the rotated part is.
    """
    whole = transformer.forward(CONFIG, PARAMS, jnp.asarray(TOKENS)).logits
    small.close(logits(LM), whole)

    wrong = lambda layer: (layer.k, layer.k[..., : layer.value])
    monkeypatch.setattr(joint.JointLayer, "read", wrong)
    faulty = transformer.transformer(CONFIG)
    assert np.abs(logits(faulty) - np.asarray(whole)).max() > 0.01


def test_long_caches_stream_the_same():
    """`tree_attention` in stretches, whose values are narrower than its keys."""
    small.close(logits(LM, 4096), logits(LM))


def test_layouts_of_two_arrays_hold_the_key_twice():
    coded = transformer.transformer(CONFIG, cache=quantized.int8())
    assert np.abs(logits(coded) - logits(LM)).max() < 0.2
    assert np.abs(logits(coded) - logits(LM)).max() > 0


def test_moves_and_rows():
    """`move`, `take`, `gather` and `grown` keep the layer and its value's width."""
    rng = np.random.default_rng(0)
    k = jnp.asarray(rng.normal(size=(2, 1, 6, 20)), jnp.float32)
    layer = joint.JointLayer(k, k[..., :0], 16)
    rows = blocks.ints([1, 0])
    for made in (
        layer.gather(rows),
        layer.take(blocks.ints([[1, 0], [2, 3]])),
        layer.grown(2),
        layer.move(blocks.ints([[4], [5]]), blocks.ints([[0], [1]])),
    ):
        assert type(made) is joint.JointLayer and made.value == 16
    moved = layer.move(blocks.ints([[4], [5]]), blocks.ints([[0], [1]]))
    np.testing.assert_array_equal(moved.k[0, 0, 0], k[0, 0, 4])
    np.testing.assert_array_equal(moved.read()[1], moved.k[..., 4:])


def test_narrow_values_of_the_reference():
    """XLA's form and the reference, values of other widths than keys."""
    from kernels.tree_attention import tree_attention

    rng = np.random.default_rng(1)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
    q, k, v = draw(2, 3, 4, 8), draw(2, 2, 16, 8), draw(2, 2, 16, 5)
    lengths = blocks.ints([9, 4])
    ancestors = jnp.asarray([[[1], [3], [5]]] * 2, jnp.uint32)
    out, lse = tree_attention(q, k, v, lengths, ancestors)
    wanted, mass = reference.tree_attention(q, k, v, lengths, ancestors)
    assert out.shape == (2, 3, 4, 5)
    small.close(out, wanted)
    small.close(lse, mass)


def test_sizes_that_are_not_the_latent_s():
    with pytest.raises(ConfigError, match="rank \\+ turned = 20"):
        dataclasses.replace(CONFIG, head_dim=16)
