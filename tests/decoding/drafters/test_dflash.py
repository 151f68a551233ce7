"""Blocks of DFlash in the loop, and the faults that would go unseen."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding.tree_building import draft_head
from models.heads import dflash as heads
from models.heads.modules import block_layers
from models.heads.modules.head_config import CONFIG
from tests.decoding.drafters import agreement
from training.objectives.heads import dflash

KEY = jax.random.key(0)
KEPT = jnp.arange(1, agreement.VOCAB, 8)
FORMS = {
    "the paper's": {},
    "shifted": {"shifted": True, "block": 3},
    "causal": {"causal": True},
    "windows": {"windows": (0, 5)},
    "windows before the anchor": {"windows": (0, 5), "before_anchor": True},
    "a token as mask": {"learned_mask": False, "mask_token": 3},
    "a draft vocabulary": {},
}


@functools.cache
def loop(form: str):
    fields = {"block": 4, "layers": 2, **FORMS[form]}
    own = heads.init(KEY, agreement.target().config, **fields)
    if form == "a draft vocabulary":
        backbone = own["backbone"]
        form_ = dataclasses.replace(backbone[CONFIG], draft_vocabulary=True)
        own["backbone"] = {**backbone, CONFIG: form_, "kept": KEPT}
    return agreement.Loop("drafters/dflash", dflash, agreement.stirred(own), 3)


@pytest.mark.parametrize("form", list(FORMS))
def test_drafts_in_the_loop_are_those_over_the_text(form):
    assert loop(form).agrees()


def test_fault_drafts_outside_of_the_draft_vocabulary(monkeypatch):
    """Planted: logits are not limited."""

    def drafted() -> np.ndarray:
        _, outcome, _ = next(loop("a draft vocabulary").rounds(1))
        return np.asarray(outcome.tree.tokens)[:, 1:4]

    assert np.isin(drafted(), KEPT).all()
    monkeypatch.setattr(heads, "limited", lambda params, laws: laws)
    assert not np.isin(drafted(), KEPT).all()


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

    def at_anchors(layers, c, features, *arguments):
        return sound(layers, c, jnp.roll(features, -1, 1), *arguments)

    run, sound = loop("the paper's"), block_layers.at_anchors
    agreement._likeliest.cache_clear()
    monkeypatch.setattr(block_layers, "at_anchors", at_anchors)
    assert not run.agrees()
    agreement._likeliest.cache_clear()
