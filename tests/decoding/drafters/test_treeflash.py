"""TreeFlash in the loop: states that the token before moves."""

import functools

import jax

from models.heads import treeflash as heads
from tests.decoding.drafters import agreement
from training.objectives.heads import treeflash

KEY = jax.random.key(0)


@functools.cache
def loop():
    own = heads.init(KEY, agreement.target().config, layers=2, block=4)
    own = agreement.stirred(own, 0.3)
    return agreement.Loop("drafters/treeflash", treeflash, own, 3)


def test_drafts_in_the_loop_are_those_over_the_text():
    assert loop().agrees()


def test_fault_the_normed_state_is_moved(monkeypatch):
    """Planted: in training the correction is added behind the norm."""

    def logits(params, slot, laws, summary, head):
        return sound.logits(params, slot._replace(raw=slot.states), laws, summary, head)

    run, sound = loop(), heads.HEAD
    agreement._likeliest.cache_clear()
    monkeypatch.setattr(heads, "HEAD", sound._replace(logits=logits))
    assert not run.agrees()
    agreement._likeliest.cache_clear()
