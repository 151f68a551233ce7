"""Hydra's heads in the loop, and beside Medusa's."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding.tree_building import draft_head
from models.heads import hydra as heads
from models.heads import medusa
from models.heads.modules import decoder_layer
from tests.decoding.drafters import agreement
from training.objectives.heads import hydra

KEY = jax.random.key(0)


@functools.cache
def params(**fields):
    lm = agreement.target()
    rows = decoder_layer.output_rows(lm.params)
    return agreement.stirred(heads.init(KEY, lm.config, rows, 3, **fields))


PLUS = {"prefix": True, "deep": True}


@functools.cache
def loop(plus: bool):
    own = params(**PLUS) if plus else params()
    return agreement.Loop("drafters/hydra", hydra, own, 3)


@pytest.mark.parametrize("plus", [False, True], ids=["hydra", "hydra++"])
def test_drafts_in_the_loop_are_those_over_the_text(plus):
    assert loop(plus).agrees()


def test_fault_a_prefix_that_skips(monkeypatch):
    """Planted: the prefix layer reads the last committed token only."""

    def pairs(outcome, cache):
        block = sound(outcome, cache)
        last = outcome.verdict.count[:, None] == jnp.arange(block.tokens.shape[1])
        return block.replace(slots=jnp.where(last, block.slots, cache.size))

    run, sound = loop(True), draft_head.pairs
    monkeypatch.setattr(draft_head, "pairs", pairs)
    assert not run.agrees()


def test_without_dependence_it_is_medusa():
    """R = [1 0 .. 0], r = c = 0 and W = [W 0 .. 0]: section 3's special case."""
    lm = agreement.target()
    rows = decoder_layer.output_rows(lm.params)
    flat = agreement.stirred(medusa.init(KEY, lm.config, rows, 3))
    bound = heads.init(KEY, lm.config, rows, 3)
    dim = lm.config.d_model
    for i in range(3):
        own = bound[f"head_{i}"]
        own["skip"] = jnp.zeros_like(own["skip"]).at[0].set(jnp.eye(dim))
        own["mix"] = jnp.zeros_like(own["mix"]).at[0].set(flat["res"][i])
        own["mix_bias"] = flat["bias"][i]
        own["head"] = flat["head"][i]
    u = jax.random.normal(KEY, (5, 4, dim))
    plain = medusa.logits(flat, u[:, 0])

    @jax.jit
    def logits(own):
        return [heads.logits(own, i, u[:, : i + 2]) for i in range(3)]

    for found, wanted in zip(logits(bound), plain):
        np.testing.assert_allclose(found, wanted, atol=1e-4)
    bound["head_2"]["skip"] = bound["head_2"]["skip"].at[3].set(jnp.eye(dim))
    moved = logits(bound)[2]  # planted: it looks at a token again
    assert np.abs(moved - plain[2]).max() > 0.1
