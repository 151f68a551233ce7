"""Blocks of DFlash in the loop, and the faults that would go unseen."""

import functools

import jax
import jax.numpy as jnp
import pytest

from decoding.tree_building import draft_head
from models.heads import dflash as heads
from models.heads.modules import block_layers
from tests.decoding.drafters import agreement
from training.objectives.heads import dflash

KEY = jax.random.key(0)
FORMS = {
    "the paper's": {},
    "shifted": {"shifted": True, "block": 3},
    "causal": {"causal": True},
    "windows": {"windows": (0, 5)},
    "a token as mask": {"learned_mask": False, "mask_token": 3},
}


@functools.cache
def loop(form: str):
    fields = {"block": 4, "layers": 2, **FORMS[form]}
    own = heads.init(KEY, agreement.target().config, **fields)
    return agreement.Loop("drafters/dflash", dflash, agreement.stirred(own), 3)


@pytest.mark.parametrize("form", list(FORMS))
def test_drafts_in_the_loop_are_those_over_the_text(form):
    assert loop(form).agrees()


def test_fault_keys_of_a_block_stay(monkeypatch):
    """Planted: the keys of masks are taken for the text's."""
    sound = draft_head.committed

    def committed(outcome, cache):
        after = sound(outcome, cache)
        return after.replace(length=after.length + 1)

    run = loop("the paper's")
    monkeypatch.setattr(draft_head, "committed", committed)
    assert not run.agrees()


def test_fault_the_other_alignment(monkeypatch):
    """Planted: in the loop slot k is read as the guess of the token behind its own."""

    def block(params, target, cache, x, start):
        raw, cache = sound(params, target, cache, x, start)
        return jnp.roll(raw, -1, 1), cache

    run, sound = loop("the paper's"), heads.block
    monkeypatch.setattr(heads, "block", block)
    assert not run.agrees()


def test_fault_the_feature_at_the_anchor_is_seen(monkeypatch):
    """Planted: in training a block sees what does not exist yet when it is drafted."""

    def at_anchors(layers, c, features, x, anchors, causal, segments=None):
        ahead = jnp.roll(features, -1, 1)
        return sound(layers, c, ahead, x, anchors, causal, segments)

    run, sound = loop("the paper's"), block_layers.at_anchors
    agreement._likeliest.cache_clear()
    monkeypatch.setattr(block_layers, "at_anchors", at_anchors)
    assert not run.agrees()
    agreement._likeliest.cache_clear()
