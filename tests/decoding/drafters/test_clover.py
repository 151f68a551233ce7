"""Clover-2's augmenting layers and cell in the loop."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding.tree_building import draft_head
from models import transformer
from models.errors import ConfigError
from models.heads import clover as heads
from models.heads.modules import decoder_layer
from tests.decoding.drafters import agreement
from training.objectives.heads import clover
from training.teacher import outputs

KEY = jax.random.key(0)


@functools.cache
def params():
    lm = agreement.target()
    return agreement.stirred(heads.init(KEY, lm.config, lm.params))


@functools.cache
def loop():
    return agreement.Loop("drafters/clover", clover, params(), 4)


@pytest.mark.long
def test_drafts_in_the_loop_are_those_over_the_text():
    """Both layers' caches, the state before the norm, and the cell along a chain."""
    assert loop().agrees()


@pytest.mark.long
def test_fault_layers_that_skip(monkeypatch):
    """Planted: the augmenting layers read the last committed token only."""
    run = loop()

    def pairs(outcome, cache):
        block = sound(outcome, cache)
        last = outcome.verdict.count[:, None] == jnp.arange(block.tokens.shape[1])
        return block.replace(slots=jnp.where(last, block.slots, cache.size))

    sound = draft_head.pairs
    monkeypatch.setattr(draft_head, "pairs", pairs)
    assert not run.agrees()


def test_fault_the_normed_state(monkeypatch):
    """Planted: the loop hands over h after the target's norm."""
    run = loop()
    sound, lm = draft_head.states, agreement.target()

    def normed(outcome, tap):
        return lm.model.norm(lm.params, sound(outcome, tap))

    monkeypatch.setattr(draft_head, "states", normed)
    assert not run.agrees()


def test_the_cell():
    """By hand for one head; V = 0 passes s; the order of two tokens matters."""
    lm = agreement.target()
    eps = decoder_layer.geometry(lm.config).norm_eps
    own = params()["cell_1"]
    dim = lm.config.d_model
    s, e, other = jax.random.normal(KEY, (3, dim))
    read = heads.cell(own, s, e, eps)
    normed = s / np.sqrt((s * s).mean() + eps) * own["norm"]
    by_hand = np.array(s)
    for h in range(own["query"].shape[1]):
        q = normed @ own["query"][:, h] + own["query_bias"][h]
        k = e @ own["key"][:, h] + own["key_bias"][h]
        v = e @ own["value"][:, h] + own["value_bias"][h]
        cosine = q @ k / np.linalg.norm(q) / np.linalg.norm(k)
        by_hand[h * len(v) : (h + 1) * len(v)] += v * cosine
    np.testing.assert_allclose(read, by_hand, atol=1e-5)
    deaf = {**own, "value": jnp.zeros_like(own["value"])}
    deaf["value_bias"] = jnp.zeros_like(own["value_bias"])
    np.testing.assert_array_equal(heads.cell(deaf, s, e, eps), s)
    assert np.abs(read - s).max() > 0.01  # planted: a cell that hears
    forth = heads.cell(own, read, other, eps)
    back = heads.cell(own, heads.cell(own, s, other, eps), e, eps)
    assert np.abs(forth - back).max() > 1e-3


def untied():
    """The target with an LM head of its own."""
    lm = agreement.target()
    model = transformer.transformer(dataclasses.replace(lm.config, tied=False))
    return model, jax.jit(model.init)(jax.random.key(4))


def test_tokens_are_read_as_rows_of_the_lm_head():
    """In training, of an untied target. Planted: its embedding, which is another."""
    model, frozen = untied()
    tokens = jax.random.randint(KEY, (1, 8), 0, agreement.VOCAB)
    batch = {"tokens": tokens, "row": jnp.arange(1)}
    teacher = outputs.teacher(model, (model.config.n_layers,))

    @jax.jit
    def first(own, frozen):
        read = teacher(frozen, batch)
        (states, _), *_ = clover.guesses(own, model, batch, read, 1)
        hidden = read.hidden[model.config.n_layers]
        by_hand = [
            heads.first(
                own,
                heads.sequence(own, model.config, outputs.ahead(x, 1), hidden),
                model.config.norm_eps,
            )
            for x in (frozen["embedding"]["head"][tokens], read.embed(tokens))
        ]
        return states, by_hand

    found, (wanted, planted) = first(params(), frozen)
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    assert np.abs(found - planted).max() > 1e-3


def test_cells_begin_as_in_the_official_code():
    """Q and K in 1 + U(0, 0.01), V in U(0, 0.01). Planted: centred, and none."""
    lm = agreement.target()
    cell = heads.init(KEY, lm.config, lm.params)["cell_1"]
    dim = lm.config.d_model
    small = [
        np.asarray(cell[name]).reshape(dim, dim) - one
        for name, one in (("query", np.eye(dim)), ("key", np.eye(dim)), ("value", 0))
    ]

    def uniform(x) -> bool:
        # n = 1,024: the mean to 5 of its deviations, 9.0e-5.
        return (
            -1e-7 <= x.min()
            and x.max() < 0.01 + 1e-7
            and abs(x.mean() - 0.005) < 4.5e-4
        )

    assert all(uniform(x) for x in small)
    assert not uniform(small[2] - 0.005) and not uniform(0 * small[0])
    assert np.abs(small[0] - small[1]).max() > 1e-3


def test_the_layers_begin_as_the_target_s_last():
    lm = agreement.target()
    fresh = heads.init(KEY, lm.config, lm.params)
    last = lm.params["layer_1"]
    np.testing.assert_array_equal(fresh["layer_1"]["qkv"], last["attention"]["qkv"])
    np.testing.assert_array_equal(fresh["layer_0"]["down"], last["mlp"]["down"])
    first = clover.init(KEY, lm.model, lm.params, layer=0)
    wanted = lm.params["layer_0"]["attention"]["qkv"]
    np.testing.assert_array_equal(first["layer_1"]["qkv"], wanted)
    assert np.abs(wanted - last["attention"]["qkv"]).max() > 0.1  # planted: the other
    with pytest.raises(ConfigError, match="layer=2 of a target of 2: use -2 to 1"):
        heads.init(KEY, lm.config, lm.params, layer=2)
    random = heads.init(KEY, lm.config)
    assert np.abs(random["layer_1"]["qkv"] - fresh["layer_1"]["qkv"]).max() > 0.1
    assert jax.tree.structure(random) == jax.tree.structure(fresh)
    with pytest.raises(ConfigError, match="steps=0"):
        clover.objective(lm.model, steps=0)
