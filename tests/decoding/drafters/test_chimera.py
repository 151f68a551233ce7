"""Chimera's trigrams and layer in the loop."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding.tree_building import draft_head
from models.heads import chimera as heads
from models.heads.modules import decoder_layer
from tests.decoding.drafters import agreement
from training.objectives.heads import chimera
from training.teacher import outputs

KEY = jax.random.key(0)


@functools.cache
def params():
    lm = agreement.target()
    rows = decoder_layer.output_rows(lm.params)
    return agreement.stirred(heads.init(KEY, lm.config, rows, 3))


@functools.cache
def loop():
    return agreement.Loop("drafters/chimera", chimera, params(), 3)


@pytest.mark.long
def test_drafts_in_the_loop_are_those_over_the_text():
    """Both halves of the cache, positions, and trigrams across the text's end."""
    assert loop().agrees()


def test_fault_states_one_late(monkeypatch):
    """Planted: a trigram stands beside the state *at* its token."""
    run = loop()
    sound = draft_head.states

    def late(outcome, tap):
        return jnp.roll(sound(outcome, tap), -1, 1)

    monkeypatch.setattr(draft_head, "states", late)
    assert not run.agrees()


@pytest.mark.long
def test_fault_bigrams(monkeypatch):
    """Planted: in the loop the first of the three tokens is forgotten."""
    run = loop()
    sound = heads.trigram

    def two(own, three):
        forget = 0.0 if three.shape[1] < agreement.SIZE else 1.0
        return sound(own, three.at[..., 0, :].multiply(forget))

    monkeypatch.setattr(heads, "trigram", two)
    assert not run.agrees()


@functools.cache
def batch_and_teacher():
    lm = agreement.target()
    batch = {"tokens": jnp.asarray([[4, 8, 15, 16, 23, 42, 3, 1]], jnp.int32)}
    return lm, batch, jax.jit(outputs.teacher(lm.model))(lm.params, batch)


def test_a_trigram_is_of_three_tokens():
    """g at t knows tokens t - 1, t, t + 1: no other moves it, and each of them does."""
    own = params()
    text = jax.random.normal(KEY, (9, agreement.target().config.d_model))

    @jax.jit
    def g(text):
        return heads.trigram(own, text[3:6])

    for at in range(9):
        moved = np.abs(g(text.at[at].add(1.0)) - g(text)).max()
        assert (moved > 1e-3) == (at in (3, 4, 5))


def test_own_guesses_are_constants():
    """The loss of step 1 has a gradient for its own trigram and layer, and none of it
    passes through the keys of step 0: what it would be if they were given."""
    lm, batch, teacher = batch_and_teacher()
    own, hidden = params(), teacher.hidden[outputs.NORM]
    embedded = teacher.embed(batch["tokens"])

    def second(down, detach):
        choose = lambda i, o: outputs.ahead(embedded, 2 + i)
        steps = (lm.config, hidden, embedded, 2, choose, detach)
        return (heads.unroll({**own, "down": down}, *steps)[1] ** 2).sum()

    @jax.jit
    def both(down):
        return [jax.value_and_grad(second)(down, detach) for detach in (False, True)]

    (value, kept), (other, cut) = both(own["down"])
    assert np.abs(kept - cut).max() > 1e-3  # planted: keys that are not detached
    assert (cut != 0).any()
    np.testing.assert_allclose(value, other, rtol=1e-6)


def test_training_drafts_on_its_own_tokens():
    """Step 0 sees the text alone, so the first hits agree; later ones need not."""
    lm, batch, teacher = batch_and_teacher()
    own = {**params(), "head": params()["head"][:2]}

    @jax.jit
    def run(own):
        whole, parts = (
            chimera.objective(lm.model, part=part).loss(own, batch, teacher)
            for part in (0, 3)
        )
        states, draft = chimera.guesses(own, lm.model, batch, teacher, 1)[0]
        return whole, parts, draft(states).argmax(-1)

    (whole, metrics), (parts, _), first = run(own)
    right = np.asarray(first)[:, :-2] == batch["tokens"][:, 2:]
    np.testing.assert_allclose(metrics["hit_0"], right.mean(), atol=1e-6)
    np.testing.assert_allclose(parts, whole, rtol=1e-5)
