"""Whole-sequence and stacked forms: the same model as the block interface."""

import dataclasses

import jax
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
