"""KV heads by SVD: exact at full rank, and never worse than the mean of heads."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding
import models
from decoding.conformance import kit
from models import transformer
from models.cache_layouts import quantized
from models.errors import ConfigError, MethodError
from models.surgery import kv_heads
from tests.models import blocks, small

ROPE = dataclasses.replace(
    small.CONFIG, n_heads=8, n_kv_heads=4, qkv_bias=True, out_bias=True
)
LEARNED = dataclasses.replace(ROPE, position="learned", ropes=(), windows=())
CONFIGS = {"rope": ROPE, "learned": LEARNED}
FULL = 2 * ROPE.head_dim  # of two heads
TEXTS = small.random_tokens(0, 6, 40)


@functools.cache
def model(name: str):
    """Random weights, biases too; heads of a group have much in common."""
    lm = transformer.transformer(CONFIGS[name])
    params = blocks.numpy_params(lm)
    rng = np.random.default_rng(0)
    for i in range(ROPE.n_layers):
        attention = params[f"layer_{i}"]["attention"]
        weights = np.array(attention["qkv"])
        shared = weights[:, ::2, -2:]
        mixed = shared @ rng.normal(size=(ROPE.head_dim, ROPE.head_dim)) * 0.4
        weights[:, 1::2, -2:] = mixed + 0.1 * weights[:, 1::2, -2:]
        for bias in ("qkv_bias", "out_bias"):
            attention[bias] = 0.3 * rng.normal(size=attention[bias].shape)
        attention["qkv"] = weights
    params = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), params)
    return models.Loaded(lm, params)


@functools.cache
def smaller(name: str, rank: int = 0, how: str = "svd"):
    return kv_heads.compress(model(name), TEXTS, 2, rank, how)


def logits(lm, tokens=TEXTS[:2]) -> np.ndarray:
    out = transformer.forward(lm.model.config, lm.params, jnp.asarray(tokens))
    return np.asarray(out.logits)


def cached(lm, tokens=TEXTS[:2, :24]) -> np.ndarray:
    """The logits of two calls over a cache, of 16 tokens and of the others."""
    cache, parts = lm.model.init_cache(len(tokens), small.SIZE), []
    for part in (tokens[:, :16], tokens[:, 16:]):
        count = jnp.full((len(part),), part.shape[1], jnp.int32)
        block = blocks.causal(blocks.ints(part), cache.length, count, small.SIZE, "all")
        out, cache = lm.model(lm.params, cache, block)
        none = jnp.zeros((len(part), 0), jnp.int32)
        cache = cache.commit(none, count - 1, linear=True)
        parts.append(out.logits)
    return np.concatenate(parts, 1)


@pytest.mark.long
@pytest.mark.parametrize("name", CONFIGS)
def test_full_rank_is_the_model(name):
    """Over a cache and over whole texts; planted: a rank one less."""
    lm, full = model(name), smaller(name, FULL)
    small.close(logits(full), logits(lm))
    small.close(cached(full), logits(lm, TEXTS[:2, :24]))
    less = logits(smaller(name, FULL - 1))
    assert np.abs(less - logits(lm)).max() > 10 * small.TOLERANCE


def test_without_rotation_a_common_transformer_results():
    config = smaller("learned", FULL).model.config
    expected = dataclasses.replace(
        LEARNED, n_kv_heads=2, head_dim=FULL, attention_scale=LEARNED.head_dim**-0.5
    )
    assert config == expected and not config.kv_rank


def test_the_cache_is_smaller():
    """One head of two remains, of as many numbers."""
    size = lambda lm: sum(
        x.nbytes for x in jax.tree.leaves(lm.model.init_cache(1, 32).layers)
    )
    for name in CONFIGS:
        assert 2 * size(smaller(name)) == size(model(name))


@pytest.mark.parametrize("name", CONFIGS)
def test_svd_loses_less_than_the_mean_of_heads(name):
    """In every layer, of keys and of values; planted: the last singular vectors.

    The loss is the sum of the other eigenvalues. No random projection loses less.
    """
    dim, rng = ROPE.head_dim, np.random.default_rng(0)
    sums = kv_heads.moments(model(name), TEXTS, 2)
    mean = kv_heads.by_mean(2, 2, dim)
    for moment in sums.reshape(-1, *sums.shape[2:]):
        best = kv_heads.by_svd(moment, dim)
        lost = kv_heads.error(moment, best)
        eigenvalues = np.linalg.eigvalsh(moment)
        assert lost == pytest.approx(eigenvalues[:, :-dim].sum() / eigenvalues.sum())
        assert lost < 0.5 * kv_heads.error(moment, mean)
        for _ in range(5):
            basis = np.linalg.qr(rng.normal(size=(2, FULL, dim)))[0]
            drawn = kv_heads.Pair(basis, basis.swapaxes(1, 2))
            assert lost < kv_heads.error(moment, drawn)
        last = np.linalg.eigh(moment)[1][:, :, :dim]
        wrong = kv_heads.Pair(last, last.swapaxes(1, 2))
        assert kv_heads.error(moment, wrong) > kv_heads.error(moment, mean)


@pytest.mark.long
def test_logits_of_the_svd_are_nearer():
    apart = lambda how: np.abs(
        logits(smaller("rope", how=how)) - logits(model("rope"))
    ).mean()
    assert apart("svd") < 0.5 * apart("mean")


def test_equal_heads_are_restored():
    """Where the heads of a group are one another's copies, both maps are exact."""
    lm = model("rope")
    params = jax.tree.map(np.array, lm.params)
    for i in range(ROPE.n_layers):
        attention = params[f"layer_{i}"]["attention"]
        for weight in (attention["qkv"], attention["qkv_bias"]):
            weight[..., 1::2, -2:, :] = weight[..., ::2, -2:, :]
    same = dataclasses.replace(lm, params=jax.tree.map(jnp.asarray, params))
    for how in ("svd", "mean"):
        small.close(logits(kv_heads.compress(same, TEXTS, 2, how=how)), logits(same))


@pytest.mark.long
def test_a_tree_decodes_the_text_of_plain_decoding():
    """Draft nodes lie in other slots than their positions."""
    lm = smaller("rope")
    prompts = [TEXTS[0, :20].tolist(), TEXTS[1, :7].tolist()]
    drafted = decoding.Method(
        kit.spec("drafters/token_recycling", choices=kit.SMALL_TREE)
    )
    plain = decoding.generate(lm, prompts, decoding.Method(), 24)
    tree = decoding.generate(lm, prompts, drafted, 24)
    assert tree.tokens == plain.tokens


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"shared": 3}, "shared=3: use a divisor of the 4 KV heads"),
        ({"shared": 2, "rank": 17}, "rank=17: use 1 to 16"),
        ({"shared": 2, "how": "max"}, "how='max': use 'svd' or 'mean'"),
        ({"shared": 2, "rank": 4, "how": "mean"}, "the mean of heads has 8"),
    ],
)
def test_bad_numbers(arguments, words):
    with pytest.raises(ConfigError, match=words):
        kv_heads.compress(model("rope"), TEXTS, **arguments)


def test_what_cannot_read_latents_is_refused():
    lm = smaller("rope")
    policy = decoding.Method(policy=decoding.Spec("caches/h2o", budget=12))
    with pytest.raises(MethodError, match="latent heads"):
        decoding.generate(lm, [[1, 2, 3]], policy, 4)
    codes = transformer.transformer(lm.model.config, cache=quantized.int8(32))
    with pytest.raises(ConfigError, match="latent heads"):
        cached(dataclasses.replace(lm, model=codes))
    with pytest.raises(ConfigError, match="has latents"):
        kv_heads.compress(lm, TEXTS, 2)
    with pytest.raises(ConfigError, match="no multiple of kv_shared=3"):
        dataclasses.replace(ROPE, kv_shared=3, kv_rank=8)
