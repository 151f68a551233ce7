"""DSpark's heads in the loop: every token corrects the law of the next."""

import functools
import types

import jax
import jax.numpy as jnp
import pytest

from decoding.drafters import dspark as drafter
from models.heads import dspark as heads
from models.heads.modules import block_head
from tests.decoding.drafters import agreement
from training.objectives.heads import dspark

KEY = jax.random.key(0)


@functools.cache
def loop(markov: str):
    target = agreement.target().config
    own = heads.init(KEY, target, markov, rank=8, layers=2, block=3)
    return agreement.Loop("drafters/dspark", dspark, agreement.stirred(own, 0.3), 3)


@pytest.mark.parametrize("markov", heads.FORMS)
def test_drafts_in_the_loop_are_those_over_the_text(markov):
    assert loop(markov).agrees()


def test_fault_the_correction_of_the_anchor_alone(monkeypatch):
    """Planted: in the loop every slot is corrected by the anchor."""
    run, sound = loop("vanilla"), heads.HEAD.step

    def step(params, carry, tokens, embedded, slot):
        first = tokens[:, :1] if tokens.ndim == 2 else tokens
        return sound(params, carry, jnp.zeros_like(tokens) + first * 0, embedded, slot)

    wrong = types.SimpleNamespace(HEAD=heads.HEAD._replace(step=step))
    monkeypatch.setattr(drafter, "dspark", wrong)  # training keeps the sound one
    assert loop.__wrapped__("vanilla").agrees() is False
    monkeypatch.undo()
    assert run.agrees()


def test_fault_the_carry_stays(monkeypatch):
    """Planted: s' is not handed to the next slot in training."""
    run, sound = loop("rnn"), block_head.summaries

    def summaries(head, params, tokens, embedded, slots):
        fixed = head._replace(
            step=lambda p, c, t, e, s: (c, head.step(p, c, t, e, s)[1])
        )
        return sound(fixed, params, tokens, embedded, slots)

    agreement._likeliest.cache_clear()
    monkeypatch.setattr(block_head, "summaries", summaries)
    assert not run.agrees()
    agreement._likeliest.cache_clear()
