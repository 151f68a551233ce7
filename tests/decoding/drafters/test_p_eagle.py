"""P-EAGLE's passes in the loop, and its places in training."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.heads import p_eagle as heads
from models.heads.modules import decoder_layer
from models.heads.modules.head_config import CONFIG
from tests.decoding.drafters import agreement
from training.objectives.heads import p_eagle

KEY = jax.random.key(0)


@functools.cache
def loop(kept: bool, embedding: bool = False):
    lm = agreement.target()
    rows = decoder_layer.output_rows(lm.params)
    own = np.arange(0, agreement.VOCAB, 2) if kept else None
    params = heads.init(KEY, lm.config, rows, own, layers=2, depths=3)
    if embedding:
        form = dataclasses.replace(params[CONFIG], own_embedding=True)
        rows = jax.random.normal(KEY, rows.shape)
        params = {**params, CONFIG: form, "embedding": rows}
    return agreement.Loop("drafters/p_eagle", p_eagle, agreement.stirred(params), 3)


@pytest.mark.parametrize("kept", [False, True], ids=["all tokens", "kept ones"])
def test_drafts_in_the_loop_are_those_over_the_text(kept):
    assert loop(kept).agrees()


def test_an_embedding_of_its_own_is_read(monkeypatch):
    """In both places. Planted: training reads the target's embedding."""
    run = loop(False, True)
    agreement._likeliest.cache_clear()
    assert run.agrees()
    agreement._likeliest.cache_clear()
    monkeypatch.setattr(heads, "embed", lambda params, tokens, theirs: theirs)
    assert not run.agrees()
    agreement._likeliest.cache_clear()


def test_fault_a_mask_sees_the_pair_behind_its_own(monkeypatch):
    """Planted: in training depths at t see the pair of depth 0 at t + 1."""

    def over_text(params, target, embedded, g, anchors, segments=None):
        first, _ = sound(params, target, embedded, g, anchors, segments)
        late = jnp.minimum(anchors + 1, g.shape[1] - 1)
        return first, sound(params, target, embedded, g, late, segments)[1]

    run, sound = loop(False), heads.over_text
    agreement._likeliest.cache_clear()
    monkeypatch.setattr(heads, "over_text", over_text)
    assert not run.agrees()
    agreement._likeliest.cache_clear()
