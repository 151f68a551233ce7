"""Medusa's heads in the loop."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding import Method, Spec, compose
from decoding.tree_building import draft_head
from models.errors import ConfigError, MethodError
from models.heads import medusa as heads
from models.heads.modules import decoder_layer
from tests.decoding.drafters import agreement
from training.objectives.heads import medusa
from training.teacher import outputs

KEY = jax.random.key(0)


@functools.cache
def params(count: int = 3):
    lm = agreement.target()
    rows = decoder_layer.output_rows(lm.params)
    return agreement.stirred(heads.init(KEY, lm.config, rows, count))


@functools.cache
def loop():
    return agreement.Loop("drafters/medusa", medusa, params(), 3)


def test_drafts_in_the_loop_are_those_over_the_text():
    assert loop().agrees()


def test_fault_the_state_of_the_root(monkeypatch):
    """Planted: drafts from the state at the root, not at the last accepted node."""
    run = loop()

    def stale(outcome, tap, old):
        return outcome.target.hidden[tap][:, 0].astype(old.dtype)

    monkeypatch.setattr(draft_head, "last_state", stale)
    assert not run.agrees()


@functools.cache
def without_outputs():
    """Heads of the first checkpoints: their states go through the target's head."""
    fresh = heads.init(KEY, agreement.target().config, None, 3)
    return {**fresh, "res": params()["res"], "bias": params()["bias"]}


def test_heads_without_output_layers_use_the_target_s():
    """In the loop and over the text; the loss is that of copies of the target's."""
    assert agreement.Loop("drafters/medusa", medusa, without_outputs(), 3).agrees()
    lm = agreement.target()
    tokens = np.random.default_rng(0).integers(0, agreement.VOCAB, (2, 16))
    batch = {"tokens": jnp.asarray(tokens, jnp.int32)}

    @jax.jit
    def loss(own):
        teacher = outputs.teacher(lm.model)(lm.params, batch)
        return medusa.objective(lm.model).loss(own, batch, teacher)[0]

    rows = decoder_layer.output_rows(lm.params)
    copies = {**params(), "head": jnp.stack([rows] * 3)}
    np.testing.assert_allclose(loss(without_outputs()), loss(copies), rtol=1e-6)
    assert abs(loss(params()) - loss(copies)) > 1e-3  # planted: outputs of their own
    fresh = medusa.init(KEY, lm.model, lm.params, heads=3, own=False)
    assert fresh.keys() == without_outputs().keys()


def test_fault_another_head_s_states(monkeypatch):
    """Planted: the target's head reads the states of the head before."""
    sound = heads.logits

    def late(own, hidden, blocks, output):
        return sound(own, hidden, blocks, lambda z: output(jnp.roll(z, 1, -2)))

    monkeypatch.setattr(heads, "logits", late)
    assert not agreement.Loop("drafters/medusa", medusa, without_outputs(), 3).agrees()


def test_heads_begin_as_the_target_s_own():
    """With W = b = 0 every head gives the logits of the next token."""
    lm = agreement.target()
    rows = decoder_layer.output_rows(lm.params)
    fresh = heads.init(KEY, lm.config, rows, 2)
    fresh["bias"] = jnp.zeros_like(fresh["bias"])
    hidden = jax.random.normal(KEY, (3, lm.config.d_model))
    for found in heads.logits(fresh, hidden):
        np.testing.assert_allclose(found, lm.model.head(lm.params, hidden), atol=1e-5)
    other = heads.logits(params(2), hidden)[0]
    assert np.abs(other - lm.model.head(lm.params, hidden)).max() > 0.1


def test_a_tree_deeper_than_the_heads_is_refused():
    lm = agreement.target()
    method = Method(
        Spec("drafters/medusa"), topology=Spec("topologies/chain", length=4)
    )
    with pytest.raises(MethodError, match="4 levels deep and there are 3"):
        compose.compose(method, lm, 0.0, {"heads": params(3)})


def test_heads_of_another_width_are_refused():
    lm = agreement.target()
    other = heads.init(
        KEY,
        lm.config.__class__(**{**vars(lm.config), "d_model": 16}),
        jnp.zeros((agreement.VOCAB, 16)),
        3,
    )
    method = Method(
        Spec("drafters/medusa"), topology=Spec("topologies/chain", length=2)
    )
    with pytest.raises(ConfigError, match="width 16"):
        compose.compose(method, lm, 0.0, {"heads": other})
