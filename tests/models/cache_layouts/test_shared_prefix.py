"""Prompts that begin alike decode as they do apart, and their prefix is kept once."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding
import models
from decoding import compose
from decoding.base import Sizes
from decoding.conformance import kit
from decoding.loops import initial_state
from models import base, transformer
from models.cache_layouts import shared_prefix
from models.errors import ConfigError
from tests.models import blocks, small
from tests.models.transformer import test_model

CONFIG = dataclasses.replace(
    small.CONFIG, n_layers=2, windows=(), max_positions=1024, eos=(7,)
)
LM = transformer.transformer(CONFIG)
LOADED = models.Loaded(LM, blocks.numpy_params(LM))
COMMON, LATER = (small.random_tokens(5, n).tolist() for n in (300, 140))
PROMPTS = [COMMON + rest for rest in ([3], [1, 4, 1, 5], LATER)]
TREE = decoding.Method(kit.spec("drafters/token_recycling", choices=kit.SMALL_TREE))
SIZES = Sizes(3, 512, 511, 1, 1, jnp.float32)
LENGTHS = jnp.asarray([len(prompt) for prompt in PROMPTS], jnp.int32)


def texts(prompts=PROMPTS):
    """Two samples of each, decoded with trees; those of the first are greedy."""
    out = decoding.generate(
        LOADED, prompts, TREE, max_new_tokens=24, temperature=(0.0, 0.8, 0.8), n=2
    )
    return out.tokens


def cache_of(prompts):
    parts = compose.compose(decoding.Method(), LOADED)
    return initial_state._cache(parts.program, prompts, SIZES, LENGTHS, True, None)


def test_texts_are_those_of_rows_apart(monkeypatch):
    """Planted: prompts taken to begin alike of which one differs in its first chunk."""
    other = [*PROMPTS[:2], [*COMMON[:100], 49 - COMMON[100], *PROMPTS[2][101:]]]
    apart = [texts(), texts(other)]
    monkeypatch.setattr(initial_state, "SHARED", 1)
    assert cache_of(PROMPTS).layers[0].start == 256
    assert texts() == apart[0]
    assert cache_of(other).shares
    monkeypatch.setattr(initial_state, "common_prefix", lambda prompts, chunk: 256)
    wrong = texts(other)
    assert wrong[:2] == apart[1][:2] and wrong[2] != apart[1][2]


def test_a_prefix_is_held_once(monkeypatch):
    """256 slots once and 256 for each of three rows, where 512 for each were."""
    dense = cache_of(PROMPTS)
    monkeypatch.setattr(initial_state, "SHARED", 2 * 256)
    found = cache_of(PROMPTS)
    count = lambda cache: sum(x.size for x in jax.tree.leaves(cache.layers))
    assert count(dense) / count(found) == 3 * 512 / (256 + 3 * 256)
    assert found.size == dense.size == 512
    monkeypatch.setattr(initial_state, "SHARED", 2 * 256 + 1)
    assert count(cache_of(PROMPTS)) == count(dense)
    # A caller who admits requests later keeps rows apart.
    monkeypatch.setattr(initial_state, "SHARED", 1)
    parts = compose.compose(decoding.Method(), LOADED)
    found = initial_state._cache(parts.program, PROMPTS, SIZES, LENGTHS, False, None)
    assert count(found) == count(dense)


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [((129, 129), 128), ((128, 300), 0), ((257, 256), 128), ((300, 300), 256)],
)
def test_what_prompts_share(lengths, expected):
    """Whole chunks of tokens that every row's cache holds before it decodes."""
    prompts = [COMMON[:length] for length in lengths]
    assert initial_state.common_prefix(prompts, 128) == expected
    changed = [*prompts, [*COMMON[:130], -1, *COMMON[131:]]]
    assert initial_state.common_prefix(changed, 128) == min(expected, 128)
    assert initial_state.common_prefix([[1], [2]], 128) == 0
    # Of 9,000 tokens the sizes are whole 1,024s.
    assert initial_state.common_prefix(2 * [9000 * [3]], 128) == 8 * 1024


def test_layers_with_windows_stay_dense(monkeypatch):
    monkeypatch.setattr(initial_state, "SHARED", 1)
    config = dataclasses.replace(CONFIG, windows=(0, 5))
    lm = transformer.transformer(config)
    parts = compose.compose(decoding.Method(), models.Loaded(lm, LOADED.params))
    found = initial_state._cache(parts.program, PROMPTS, SIZES, LENGTHS, True, None)
    assert found.shares
    like = jax.eval_shape(lambda: lm.init_cache(3, 512))
    block = base.causal_block(
        jnp.zeros((3, 4), jnp.int32), *jnp.zeros((2, 3), int), 512
    )
    with pytest.raises(ConfigError, match="window of 5"):
        jax.eval_shape(
            lambda: lm(LOADED.params, shared_prefix.shared(like, 128), block)
        )


def test_rows_are_moved_and_gathered_behind_the_prefix():
    like = jax.eval_shape(lambda: LM.init_cache(3, 256))
    layer = shared_prefix.shared(like, 128).layers[0]
    rng = np.random.default_rng(0)
    k = jnp.asarray(rng.normal(size=(3, 6, 2, 8)), jnp.float32)
    slots = jnp.array([[128], [200], [250]]) + jnp.arange(6)
    layer = layer.append(slots, k, k)
    moved = layer.move(slots[:, 4:5], jnp.array([[129], [300], [251]])).read()[0]
    np.testing.assert_array_equal(moved[0, :, 129], k[0, 4])
    np.testing.assert_array_equal(moved[1, :, 200:206], k[1].swapaxes(0, 1))
    np.testing.assert_array_equal(moved[2, :, 251], k[2, 4])
    turned = layer.gather(jnp.array([2, 2, 0])).read()[0]
    np.testing.assert_array_equal(turned[0, :, 250:], k[2].swapaxes(0, 1))


def test_no_copy_of_the_prefix_in_the_loop(monkeypatch):
    config = dataclasses.replace(small.CONFIG, windows=())
    lm = transformer.transformer(config)

    def init_cache(batch, size):
        return shared_prefix.shared(
            jax.eval_shape(lambda: lm.init_cache(batch, size)), 256
        )

    monkeypatch.setattr(test_model, "LM", lm._replace(init_cache=init_cache))
    text = test_model.loop_text()
    for rows in (1, 2):
        elements = rows * config.n_kv_heads * 256 * config.head_dim
        assert test_model.cache_copies(text, elements) == []
