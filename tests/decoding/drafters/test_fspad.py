"""FSPAD's draft layer in the loop, and beside EAGLE's."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding.tree_building import draft_head
from models.heads import eagle
from models.heads import fspad as heads
from tests.decoding.drafters import agreement
from training.objectives.heads import fspad
from training.teacher import outputs

KEY = jax.random.key(0)


@functools.cache
def params():
    return agreement.stirred(heads.init(KEY, agreement.target().config))


@functools.cache
def loop():
    return agreement.Loop("drafters/fspad", fspad, params(), 4)


@pytest.mark.long
def test_drafts_in_the_loop_are_those_over_the_text():
    assert loop().agrees()


@pytest.mark.long
def test_fault_the_half_for_the_law_is_handed_on(monkeypatch):
    """Planted: drafts go on from a, which nothing holds to the features."""
    run = loop()

    def block(params, target, cache, embedded, features, nodes):
        found, cache = sound(params, target, cache, embedded, features, nodes)
        return heads.both(heads.halves(found)[0]), cache

    sound = heads.block
    monkeypatch.setattr(heads, "block", block)
    assert not run.agrees()


def test_fault_features_one_late(monkeypatch):
    """Planted: a pair has the state *at* its token, not the one that chose it."""
    run = loop()
    sound = draft_head.states

    def late(outcome, tap):
        return jnp.roll(sound(outcome, tap), -1, 1)

    monkeypatch.setattr(draft_head, "states", late)
    assert not run.agrees()


def test_without_sampling_and_with_equal_halves_it_is_eagle():
    """S_down = 0 and both halves of the layer's last matrix the same: section 3's
    special case, over whole texts and several steps on own features."""
    lm = agreement.target()
    plain = agreement.stirred(eagle.init(KEY, lm.config))
    down = plain["layer"]["down"]
    bound = {
        **plain,
        "layer": {**plain["layer"], "down": jnp.concatenate([down, down], 1)},
        "sample": {
            **params()["sample"],
            "down": jnp.zeros_like(params()["sample"]["down"]),
        },
    }
    embedded = jax.random.normal(KEY, (2, 9, lm.config.d_model))
    features = jax.random.normal(jax.random.key(1), embedded.shape)

    @functools.partial(jax.jit, static_argnums=0)
    def steps(module, own):
        return module.unroll(own, lm.config, embedded, features, 3, lambda s, x: x)

    wanted, found = steps(eagle, plain), steps(heads, bound)
    for half in heads.halves(found):
        np.testing.assert_allclose(half, wanted, atol=1e-4)
    sampled = {**bound, "sample": params()["sample"]}
    moved = heads.halves(steps(heads, sampled))[0]  # planted: the token gates
    assert np.abs(moved - wanted).max() > 0.05


def test_each_loss_has_its_own_half():
    """The regression's gradient of the law's half of `down` is 0, and the reverse."""
    lm, own = agreement.target(), params()
    batch = {"tokens": jnp.asarray([[4, 8, 15, 16, 23, 42, 3, 1]], jnp.int32)}

    @jax.jit
    @jax.grad
    def gradient(own, soft):
        teacher = outputs.teacher(lm.model)(lm.params, batch)
        objective = fspad.objective(lm.model, soft=soft, noise=0.0)
        return objective.loss(own, batch, teacher)[0]

    dim = lm.config.d_model
    regression, whole = (gradient(own, soft)["layer"]["down"] for soft in (0.0, 1.0))
    assert (regression[:, :dim] == 0).all() and (regression[:, dim:] != 0).any()
    assert (whole[:, :dim] != 0).any()  # planted: with the law's loss it is not
    np.testing.assert_allclose(whole[:, dim:], regression[:, dim:], atol=1e-6)
