"""Domino in the loop: a GRU along every path of drafts."""

import functools

import jax

from models.heads import domino as heads
from tests.decoding.drafters import agreement
from training.objectives.heads import domino

KEY = jax.random.key(0)


@functools.cache
def loop():
    target = agreement.target().config
    own = heads.init(KEY, target, width=8, rank=8, layers=2, block=3)
    return agreement.Loop("drafters/domino", domino, agreement.stirred(own, 0.3), 3)


def test_drafts_in_the_loop_are_those_over_the_text():
    assert loop().agrees()


def test_fault_the_first_slot_is_corrected(monkeypatch):
    """Planted: in training the GRU corrects the law of the first slot too."""

    def start(params, shape):
        state, number = sound.start(params, shape)
        return state, number + 1

    run, sound = loop(), heads.HEAD
    agreement._likeliest.cache_clear()
    monkeypatch.setattr(heads, "HEAD", sound._replace(start=start))
    assert not run.agrees()
    agreement._likeliest.cache_clear()
