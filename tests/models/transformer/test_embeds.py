"""`Block.embeds`: rows that a call reads in place of the embedding table's."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models import base, errors, io, transformer
from models.surgery import vocab_trim
from models.synthetic import constant, recorded, toy
from tests.models import blocks
from tests.models.small import CONFIG, SIZE, random_tokens

SCALED = {"embed_scale": 5.7}  # Gemma's sqrt(d)
LEARNED = {"position": "learned", "ropes": (), "position_offset": 2, "embed_scale": 0.5}
UNTIED = {"tied": False}
TOKENS = random_tokens(0, 2, 5)


def made(fields, dtype=jnp.float32):
    lm = transformer.transformer(dataclasses.replace(CONFIG, **fields), dtype)
    cast = lambda x: x.astype(dtype)
    return lm, jax.tree.map(cast, blocks.numpy_params(lm))


def block_of(lm, embeds=None):
    cache = lm.init_cache(2, SIZE)
    block = blocks.causal(
        blocks.ints(TOKENS), cache.length, blocks.ints([5, 5]), SIZE, base.ALL
    )
    return cache, dataclasses.replace(block, embeds=embeds)


def called(lm, params, embeds=None, taps=(0,)):
    out, cache = blocks.call(lm, taps)(params, *block_of(lm, embeds))
    return out.logits, out.hidden, cache.layers


def table(params) -> np.ndarray:
    return np.asarray(params["embedding"]["tokens"], np.float32)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize(
    "fields", [SCALED, LEARNED, UNTIED], ids=("scaled", "learned", "untied")
)
def test_a_token_s_row_is_the_token_bitwise(fields, dtype):
    """E[one-hot] by a product; planted: rows that were scaled and placed before."""
    lm, params = made(fields, dtype)
    one_hot = np.eye(CONFIG.vocab_size, dtype=np.float32)[TOKENS]
    rows = jnp.asarray(one_hot @ table(params))
    plain = called(lm, params)
    same = lambda a, b: all(
        np.array_equal(np.asarray(x, np.float32), np.asarray(y, np.float32))
        for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    )
    assert same(plain, called(lm, params, rows))
    entered = jnp.asarray(plain[1][0], jnp.float32)
    assert same(plain, called(lm, params, entered)) == (fields == UNTIED)
    assert not same(plain, called(lm, params, jnp.roll(rows, 1, -2)))


@pytest.mark.parametrize("fields", [SCALED, LEARNED], ids=("scaled", "learned"))
def test_a_mixture_is_scaled_and_placed_as_a_row(fields):
    """By NumPy; planted: the place, or the scale, is left out."""
    lm, params = made(fields)
    weights = np.random.default_rng(1).dirichlet(np.ones(50), (2, 5)).astype(np.float32)
    mixed = weights @ table(params)
    hidden = called(lm, params, jnp.asarray(mixed))[1]
    scale, place = fields["embed_scale"], 0.0
    if "position" in fields:
        place = np.asarray(params["embedding"]["positions"])[np.arange(5) + 2]
    np.testing.assert_allclose(hidden[0], mixed * scale + place, atol=1e-5)
    assert np.abs(np.asarray(hidden[0]) - mixed).max() > 0.1


def test_a_block_without_rows_has_the_program_of_before():
    """That of `embed`, `layers`, `norm` and `head`; planted: the rows are there."""
    lm, params = made(SCALED)

    def by_parts(params, cache, block):
        cache = cache.open(block)
        x = lm.embed(params, block.tokens, block.positions)
        x, cache, _ = lm.layers(params, cache, x, block, 0, 3, ())
        return base.ModelOutput(lm.head(params, lm.norm(params, x)), {}), cache

    traced = lambda f, *about: str(jax.make_jaxpr(f)(params, *about).jaxpr)
    about = block_of(lm)
    assert traced(lm, *about) == traced(by_parts, *about)
    rows = jnp.zeros((2, 5, CONFIG.d_model))
    assert traced(lm, *block_of(lm, rows)) != traced(by_parts, *about)


def test_other_models():
    """A trimmed head keeps the table, and the costless model reads nothing.

    The toy reads a token's row as the token, and a mixture as the token nearest to its
    mean; planted: the token below it. The recorded model has no table.
    """
    lm, params = made(UNTIED)
    rows = lm.token_rows(params, TOKENS)
    trimmed = vocab_trim.trim(io.Loaded(lm, params), np.arange(40))
    logits = called(trimmed.model, trimmed.params, rows)[0]
    np.testing.assert_array_equal(logits, called(trimmed.model, trimmed.params)[0])
    blank, numbers = constant.language_model(lm), constant.params(lm)
    zeros = blank.token_rows(numbers, TOKENS)
    logits = called(blank, numbers, zeros)[0]
    np.testing.assert_array_equal(logits, called(blank, numbers)[0])

    lm, params = toy.model(vocab=50, seed=3)
    rows = lm.token_rows(params, jnp.asarray(TOKENS))
    plain = called(lm, params)
    np.testing.assert_array_equal(plain[0], called(lm, params, rows)[0])
    other = lm.token_rows(params, jnp.asarray(TOKENS) + 1)
    near = called(lm, params, 0.6 * rows + 0.4 * other)[0]
    np.testing.assert_array_equal(plain[0], near)
    assert (called(lm, params, 0.4 * rows + 0.6 * other)[0] != plain[0]).any()

    lm = recorded.language_model(50)
    with pytest.raises(errors.ConfigError, match="without an embedding table"):
        lm({"text": TOKENS}, *block_of(lm, jnp.zeros((2, 5, 1))))
