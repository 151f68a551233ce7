"""One switch, `kernel=`, and the same text whichever way the cache is read."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding
import models
from decoding.conformance import kit
from kernels.tree_attention import layout
from models import base, transformer
from models.errors import ConfigError
from models.transformer import cached_attention
from tests.models import blocks, small
from tests.models.transformer import test_model

pytestmark = pytest.mark.kernels

CONFIG = dataclasses.replace(small.CONFIG, n_layers=2, windows=(0, 5))
PARAMS = blocks.numpy_params(transformer.transformer(CONFIG))
TREE = decoding.Method(kit.spec("drafters/token_recycling", choices=kit.SMALL_TREE))
PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6], [2, 7], [1, 8, 2, 8, 1, 8, 2, 8, 4, 5, 9]]


def texts(kernel, method):
    """24 tokens a row; the model is made anew, so that nothing is compiled before."""
    model = transformer.transformer(CONFIG, kernel=kernel)
    lm = models.Loaded(model, PARAMS)
    out = decoding.generate(lm, PROMPTS, method, max_new_tokens=24)
    return out.tokens


@pytest.fixture(scope="module")
def plain():
    return texts("xla", decoding.Method())


def test_the_kernel_decodes_a_tree_as_plain_decoding_does(plain):
    assert texts("pallas", TREE) == plain


def test_a_call_gives_the_same_logits(monkeypatch):
    """Three rows of a tree; planted: rows that see one slot too many."""
    parents = np.tile(np.array([-1, 0, 0, 1, 1, 2], np.int32), (3, 1))
    block = blocks.tree_block(small.random_tokens(8, 3, 6), parents, [0, 20, 57])
    bounds, step = layout.bounds, [0]
    monkeypatch.setattr(layout, "bounds", lambda *a: bounds(*a) + step[0])

    def logits(kernel):
        lm = transformer.transformer(CONFIG, kernel=kernel)

        def call(cache, one_more):
            step[0] = jnp.stack([one_more, 0 * one_more, 0 * one_more])[:, None]
            return lm(PARAMS, cache, block)[0].logits

        return jax.jit(call)

    rng = np.random.default_rng(9)
    cache = jax.tree.map(
        lambda x: jnp.asarray(rng.normal(size=x.shape), x.dtype),
        jax.eval_shape(lambda: transformer.transformer(CONFIG).init_cache(3, 64)),
    )
    cache = cache.replace(
        pos=jnp.tile(jnp.arange(64, dtype=jnp.int32), (3, 1)),
        length=block.visibility.prefix,
    )
    expected, kernel = logits("xla")(cache, 0), logits("pallas")
    small.close(kernel(cache, 0), expected)
    assert np.abs(kernel(cache, 1) - expected).max() > 10 * small.TOLERANCE


def test_a_long_cache_is_read_piece_by_piece(plain, monkeypatch):
    monkeypatch.setattr(cached_attention, "LONG", 0)
    assert texts("xla", TREE) == plain
    # The loop over the cache makes no copy of it.
    elements = 2 * small.CONFIG.n_kv_heads * 512 * small.CONFIG.head_dim
    text = test_model.loop_text()
    assert text.count(" while(") > 1
    assert test_model.cache_copies(text, elements) == []


def test_no_mask_of_every_slot_in_memory(monkeypatch):
    """Temporaries of a call at 32k slots stay below a byte for each node and slot."""
    config = dataclasses.replace(small.CONFIG, n_layers=1, windows=(5,))
    size, nodes = 2**15, 64

    def temporary():
        lm = transformer.transformer(config, kernel="xla")
        cache = jax.eval_shape(lambda: lm.init_cache(2, size))
        params = jax.eval_shape(lm.init, jax.random.key(0))
        index = jnp.zeros((2, nodes), jnp.int32)
        seen = base.Visibility(index[:, 0], jnp.zeros((2, nodes, 2), jnp.uint32))
        block = base.Block(index, index, index, seen)
        call = jax.jit(lambda *a: lm(*a), donate_argnums=1)
        compiled = call.lower(params, cache, block).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert temporary() < 2 * nodes * size
    monkeypatch.setattr(cached_attention, "LONG", size + 1)  # planted
    assert temporary() > 2 * nodes * size


def test_who_takes_which_form():
    seen = base.Visibility(jnp.zeros(1, jnp.int32), jnp.zeros((1, 2, 1), jnp.uint32))
    index = jnp.zeros((1, 2), jnp.int32)
    block = base.Block(index, index, index, seen)
    masked = block.replace(
        visibility=seen.replace(slot_mask=jnp.ones((1, 2, 64), bool))
    )
    alibi = dataclasses.replace(CONFIG, position="alibi", ropes=())
    assert cached_attention.whole(CONFIG, block, 64, "auto")
    assert not cached_attention.whole(CONFIG, block, 2**13, "auto")
    assert not cached_attention.whole(CONFIG, block, 64, "pallas")
    assert cached_attention.whole(CONFIG, masked, 2**13, "pallas")
    assert cached_attention.whole(alibi, block, 2**13, "pallas")
    with pytest.raises(ConfigError, match="cudnn"):
        transformer.transformer(CONFIG, kernel="cudnn")


def test_a_row_that_sees_nothing_is_finite():
    """Rows of length 0 without nodes, as free rows are: out 0, no NaN."""
    lm = transformer.transformer(CONFIG, kernel="pallas")
    index = jnp.zeros((1, 2), jnp.int32)
    seen = base.Visibility(index[:, 0], jnp.zeros((1, 2, 1), jnp.uint32))
    block = base.Block(index, index, index + 16, seen)
    out, _ = blocks.call(lm)(PARAMS, lm.init_cache(1, 16), block)
    assert np.isfinite(out.logits).all()
