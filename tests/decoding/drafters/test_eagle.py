"""EAGLE's draft layer in the loop."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from decoding.tree_building import draft_head
from models.heads import eagle as heads
from tests.decoding.drafters import agreement
from training.objectives.heads import eagle
from training.teacher import outputs

KEY = jax.random.key(0)


@functools.cache
def params():
    return agreement.stirred(heads.init(KEY, agreement.target().config))


@functools.cache
def loop():
    return agreement.Loop("drafters/eagle", eagle, params(), 4)


def test_drafts_in_the_loop_are_those_over_the_text():
    """A chain of the loop is the unrolled layer: features, cache and positions."""
    assert loop().agrees()


def test_fault_features_one_late(monkeypatch):
    """Planted: a pair has the state *at* its token, not the one that chose it."""
    run = loop()
    sound = draft_head.states

    def late(outcome, tap):
        return jnp.roll(sound(outcome, tap), -1, 1)

    monkeypatch.setattr(draft_head, "states", late)
    assert not run.agrees()


def test_depth_one_is_the_feature_forced_form():
    lm = agreement.target()
    batch = {"tokens": jnp.asarray([[4, 8, 15, 16, 23, 42, 3, 1]], jnp.int32)}

    @jax.jit
    def run(own):
        teacher = outputs.teacher(lm.model)(lm.params, batch)
        embedded = outputs.ahead(teacher.embed(batch["tokens"]), 1)
        features = teacher.hidden[outputs.NORM]
        forced = heads.sequence(own, lm.config, embedded, features)
        own_steps = eagle.guesses(own, lm.model, batch, teacher, 2)
        return forced, *(states for states, _ in own_steps)

    forced, first, second = run(params())
    np.testing.assert_allclose(first, forced, atol=1e-5)
    assert np.abs(second - forced).max() > 0.1


def test_without_the_token_its_law_cannot_know_it():
    """EAGLE's ablation: with the embedding's half of fc zero, tokens do not matter."""
    lm, own = agreement.target(), params()
    embedded = jax.random.normal(KEY, (1, 6, lm.config.d_model))
    features = jax.random.normal(jax.random.key(1), embedded.shape)
    deaf = {**own, "fuse": own["fuse"].at[0].set(0.0)}

    @jax.jit
    def run(own, embedded):
        return heads.sequence(own, lm.config, embedded, features)

    a = run(deaf, embedded)
    np.testing.assert_array_equal(a, run(deaf, -embedded))
    c = run(own, -embedded)  # planted: it hears
    assert np.abs(c - a).max() > 0.1
