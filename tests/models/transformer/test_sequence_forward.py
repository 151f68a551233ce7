"""Whole-sequence and stacked forms: the same model as the block interface."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models import base, errors, transformer
from tests.models import blocks
from tests.models.small import CONFIG, LM, PARAMS, SIZE, causal, close, random_tokens


def test_training_form_equals_blocks():
    tokens = random_tokens(8, 2, 10)
    taps = (0, 2, 3, "norm", base.FFN_INPUT)
    out = jax.jit(lambda p, t: transformer.forward(CONFIG, p, t, taps=taps))(
        PARAMS, blocks.ints(tokens)
    )
    cache, block = causal(tokens)
    want, _ = blocks.call(LM, taps)(PARAMS, cache, block)
    close(out.logits, want.logits)
    for tap in taps:
        close(out.hidden[tap], want.hidden[tap])


def test_packed_segments_equal_documents_alone():
    tokens = random_tokens(9, 1, 10)
    segments = blocks.ints([[0] * 4 + [1] * 6])
    run = jax.jit(lambda p, t, s: transformer.forward(CONFIG, p, t, s).logits)
    got = run(PARAMS, blocks.ints(tokens), segments)[0]
    close(got[:4], blocks.whole(LM, PARAMS, tokens[:, :4], SIZE)[0])
    close(got[4:], blocks.whole(LM, PARAMS, tokens[:, 4:], SIZE)[0])


def test_stacked_form():
    config = dataclasses.replace(CONFIG, windows=())
    stacked = transformer.stack_layers(PARAMS)
    back = transformer.unstack_layers(stacked)
    assert jax.tree.structure(back) == jax.tree.structure(PARAMS)
    for a, b in zip(jax.tree.leaves(back), jax.tree.leaves(PARAMS)):
        np.testing.assert_array_equal(a, b)
    tokens = blocks.ints(random_tokens(10, 2, 6))
    run = jax.jit(lambda p: transformer.forward(config, p, tokens).logits)
    close(run(stacked), run(PARAMS))
    with pytest.raises(errors.ConfigError, match="unstack_layers"):
        transformer.forward(CONFIG, stacked, tokens)


WHOLE = dataclasses.replace(CONFIG, windows=())


def logits_of(tokens, **fields):
    run = jax.jit(lambda t: transformer.forward(WHOLE, PARAMS, t, **fields).logits)
    return run(blocks.ints(tokens))


def test_bidirectional_equals_blocks():
    tokens = random_tokens(11, 2, 10)
    lm = transformer.transformer(WHOLE)
    place = jnp.broadcast_to(jnp.arange(10), (2, 10))
    seen = base.Visibility(blocks.ints([10, 10]), jnp.zeros((2, 10, 1), jnp.uint32))
    block = base.Block(blocks.ints(tokens), place, place, seen)
    want, _ = blocks.call(lm, ())(PARAMS, lm.init_cache(2, SIZE), block)
    got = logits_of(tokens, mask=transformer.bidirectional(10))
    close(got, want.logits)
    assert np.abs(got - logits_of(tokens)).max() > 0.01  # planted: causal


@pytest.mark.parametrize("size", [1, 3, 4])
def test_a_noised_copy_beside_the_clean_text(size):
    """Each noised block equals that block behind clean ones, run under a plain mask.

    Planted: noised blocks that also see themselves clean.
    """
    clean, noised = random_tokens(12, 1, 10), random_tokens(13, 1, 10)
    both = np.stack([noised, clean], 2).reshape(1, 20)
    where = {"positions": jnp.repeat(jnp.arange(10), 2)[None]}
    mask = transformer.noised_beside_clean(10, size)
    got = logits_of(both, mask=mask, **where, ahead=2 * size)
    plain = lambda t: logits_of(t, mask=transformer.block_causal(t.shape[1], size))
    close(got[:, 1::2], plain(clean))
    leaking = mask | (jnp.repeat(jnp.eye(10, dtype=bool), 2, 0).repeat(2, 1))
    leaked, wrong = logits_of(both, mask=leaking, **where), 0.0
    for begin in range(0, 10, size):
        end = min(begin + size, 10)
        text = np.concatenate([clean[:, :begin], noised[:, begin:end]], 1)
        want = plain(text)[:, begin:]
        close(got[:, 2 * begin : 2 * end : 2], want)
        wrong = max(wrong, np.abs(leaked[:, 2 * begin : 2 * end : 2] - want).max())
    assert wrong > 0.01


def test_block_sizes_differ_by_row():
    mask = transformer.block_causal(6, blocks.ints([2, 3]))
    assert mask[0, 1].tolist() == [True] * 2 + [False] * 4
    assert mask[1, 1].tolist() == [True] * 3 + [False] * 3


def test_windows_are_of_causal_attention():
    with pytest.raises(errors.ConfigError, match=r"windows=\(0, 5, 0\)"):
        tokens = blocks.ints(random_tokens(14, 1, 6))
        mask = transformer.bidirectional(6)
        transformer.forward(CONFIG, PARAMS, tokens, mask=mask)
