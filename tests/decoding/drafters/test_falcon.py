"""Falcon's LSTM and blocks in the loop, and as EAGLE."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding.tree_building import draft_head
from models.errors import ConfigError
from models.heads import eagle
from models.heads import falcon as heads
from tests.decoding.drafters import agreement
from training.objectives.heads import falcon
from training.teacher import outputs

KEY = jax.random.key(0)


@functools.cache
def params():
    return agreement.stirred(heads.init(KEY, agreement.target().config))


@functools.cache
def loop():
    return agreement.Loop("drafters/falcon", falcon, params(), 4)


@pytest.mark.long
def test_drafts_in_the_loop_are_those_over_the_text():
    """Two blocks: memory, keys, and where the blocks begin."""
    assert loop().agrees()


def test_fault_a_memory_that_reads_on(monkeypatch):
    """Planted: the LSTM remembers the whole round, not its committed part."""
    run = loop()
    sound = draft_head.settle

    def settle(outcome, found, old, cache):
        _, cache = sound(outcome, found, old, cache)
        return found[:, -1], cache

    monkeypatch.setattr(draft_head, "settle", settle)
    assert not run.agrees()


def test_fault_a_causal_block(monkeypatch):
    """Planted: in the loop a block's last pair alone sees the whole block."""
    run = loop()
    sound = heads.block

    def block(own, target, cache, recent, last, seen):
        found = sound(own, target, cache, recent, last, seen)
        shorter = seen.replace(prefix=seen.prefix - 1, ancestors=seen.ancestors >> 1)
        first = sound(own, target, cache, recent, last, shorter)
        return found.at[:, :, 0].set(first[:, :, 0])

    monkeypatch.setattr(heads, "block", block)
    assert not run.agrees()


def text():
    lm = agreement.target()
    embedded = jax.random.normal(KEY, (2, 9, lm.config.d_model))
    return lm, embedded, jax.random.normal(jax.random.key(1), embedded.shape)


def test_without_the_lstm_and_blocks_of_one_it_is_eagle():
    lm, embedded, features = text()
    plain = agreement.stirred(eagle.init(KEY, lm.config))
    form = heads.HeadConfig(lstm=False, bias=True)

    @jax.jit
    def run(plain):
        texts, blocks = (lm.config, embedded, features, 3), {**plain, "config": form}
        wanted = eagle.unroll(plain, *texts, lambda s, x: x)
        found = (heads.unroll(blocks, *texts, size) for size in (1, 2))
        return wanted, *found

    wanted, found, two = run(plain)
    np.testing.assert_allclose(jnp.stack(found), wanted, atol=1e-4)
    assert np.abs(two[1] - wanted[1]).max() > 0.05  # planted: blocks of two


def test_a_block_of_the_text_is_a_block_of_the_draft():
    """At a block's end the training form gives what the draft's first block does; its
    mask is symmetric in a block and shows nothing of later ones."""
    lm, embedded, features = text()
    own = params()
    unroll = jax.jit(lambda own: heads.unroll(own, lm.config, embedded, features, 2, 2))
    drafted = unroll(own)

    @jax.jit
    def sequence(own, embedded, offset):
        return heads.sequence(own, lm.config, embedded, features, 2, offset)

    for offset in (0, 1):
        found = sequence(own, embedded, offset)
        for end in range(1 - offset, 9, 2):
            if end:
                np.testing.assert_allclose(
                    found[:, end - 1], drafted[0][:, end], atol=1e-4
                )
            np.testing.assert_allclose(found[:, end], drafted[1][:, end], atol=1e-4)
    found = sequence(own, embedded, 0)
    moved = sequence(own, embedded.at[:, 5].add(1.0), 0)
    changed = np.abs(moved - found).max((0, 2)) > 1e-4
    np.testing.assert_array_equal(changed, [False] * 4 + [True] * 5)
    shifted = sequence(own, embedded, 1)
    assert np.abs(shifted - found).max() > 0.01  # planted: blocks elsewhere


def test_what_is_revealed():
    """A share of the number of wrong guesses, among the positions that count."""
    wrong = jnp.asarray([[1.0] * 6 + [0.0] * 6, [0.0] * 12])
    weights = jnp.ones((2, 12)).at[0, 11].set(0.0)
    shown = falcon.revealed(KEY, wrong, weights, 0.5)
    assert shown.sum(1).tolist() == [3, 0] and not shown[0, 11]
    assert falcon.revealed(KEY, wrong, weights, 0.0).sum() == 0
    every = falcon.revealed(KEY, weights, weights, 1.0)
    np.testing.assert_array_equal(every, weights > 0)  # planted: all is told
    with pytest.raises(ConfigError, match=r"glance=0\.95"):
        falcon.objective(agreement.target().model, glance=0.95)


def test_without_glancing_it_is_plain_training():
    lm, own = agreement.target(), params()
    tokens = jax.random.randint(KEY, (2, 16), 0, agreement.VOCAB)
    batch = {"tokens": tokens, "row": jnp.arange(2)}
    bare = {"noise": 0.0, "hard": 0.0, "soft": 0.0, "glance": 0.0}
    each = ({"least": 0.0}, {"least": 0.5}, {"soft": 1.0, "hard": 0.5, "part": 5})

    @jax.jit
    def run(own):
        teacher = outputs.teacher(lm.model)(lm.params, batch)
        hidden = teacher.hidden[outputs.NORM]
        embedded = outputs.ahead(teacher.embed(tokens), 1)
        found = heads.sequence(own, lm.config, embedded, hidden, 2)
        objectives = [falcon.objective(lm.model, **{**bare, **f}) for f in each]
        losses = [o.loss(own, batch, teacher)[0] for o in objectives]
        return found - outputs.ahead(hidden, 2), losses

    error, (told_none, told_half, with_laws) = run(own)
    error = np.abs(np.asarray(error))[:, :-3]
    by_hand = np.where(error < 1, 0.5 * error**2, error - 0.5).mean()
    np.testing.assert_allclose(told_none, by_hand, rtol=1e-5)
    assert abs(told_half - by_hand) > 1e-4  # planted: half of the wrong ones are told
    assert np.isfinite(with_laws)


def scanned_products(function, *arguments) -> list[int]:
    """The matrix products within each scan of a function."""
    jaxpr = jax.make_jaxpr(function)(*arguments)
    scans = [e for e in jaxpr.eqns if e.primitive.name == "scan"]
    bodies = [e.params["jaxpr"].jaxpr for e in scans]
    return [sum(e.primitive.name == "dot_general" for e in b.eqns) for b in bodies]


def test_a_step_of_the_lstm_multiplies_its_state_alone():
    """One product a layer. Planted: pairs one by one, with two a layer."""
    own = params()
    x = jax.random.normal(KEY, (2, 2, 9, agreement.target().config.d_model))
    first = heads.start(own, 2)

    def one_by_one(own, embedded, features, state):
        def step(state, pair):
            u, state = heads.fused(own, *pair, state)
            return state, (u, state)

        pairs = (embedded.swapaxes(0, 1), features.swapaxes(0, 1))
        u, states = jax.lax.scan(step, state, pairs)[1]
        return u.swapaxes(0, 1), states.swapaxes(0, 1)

    arguments = (own, x[0], x[1], first)
    assert scanned_products(heads.along, *arguments) == [1, 1]
    assert scanned_products(one_by_one, *arguments) == [4]
    both = jax.jit(heads.along)(*arguments), jax.jit(one_by_one)(*arguments)
    for a, b in zip(*both):
        np.testing.assert_allclose(a, b, atol=1e-5)
