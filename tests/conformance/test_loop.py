"""What every method owes the loop, and the faults that its contract catches."""

import jax.numpy as jnp
import pytest

from decoding import Method
from decoding.conformance import drafters, kit
from decoding.loops import engines
from tests.conformance import parameters

CASES = kit.cases()
EACH = parameters.each(CASES)
EAGER = ("plain", "oracle-chain")
EACH_EAGER = [
    pytest.param(method, id=name, marks=() if name in EAGER else (pytest.mark.long,))
    for name, method in CASES.items()
]
RECYCLING = CASES["token_recycling"]


@pytest.mark.parametrize("contract", drafters.CONTRACT, ids=lambda c: c.__name__)
@pytest.mark.parametrize("method", EACH)
def test_contract(method, contract):
    contract(method)


@pytest.mark.parametrize("contract", drafters.SLOW, ids=lambda c: c.__name__)
@pytest.mark.parametrize("method", EACH_EAGER)
def test_slow_contract(method, contract):
    contract(method)


def test_fault_a_setting_that_shapes_the_program():
    """The counter can count: another length of chain is another program."""
    kit.generate(Method(kit.spec("drafters/copyspec", copy=2)), 0.0)
    before = drafters.compiled()
    kit.generate(Method(kit.spec("drafters/copyspec", copy=3)), 0.0)
    assert drafters.compiled() > before


def test_fault_keys_of_the_row():
    """Planted: the key of the row that a request runs in, not the request's."""
    together = kit.generate(Method(), 0.8)
    keys = engines.request_keys(0, len(kit.PROMPTS), 1)
    texts = drafters.moved(kit.Run(Method(), 0.8), [3, 0, 1, 2], keys)
    assert [text for text, _ in texts] != together.tokens


def test_fault_finished_rows_teach():
    run = kit.Run(RECYCLING, 0.8)
    sound = run.parts.program.drafter

    def observe(ctx, state, outcome):
        everyone = outcome.replace(active=jnp.ones_like(outcome.active))
        return sound.observe(ctx, state, everyone)

    assert drafters.learned(run.alter(drafter=sound._replace(observe=observe)))


def test_fault_eos_inside_a_path():
    """Planted: only the last token of a round is looked at."""
    method = CASES["oracle-chain"]
    lm = kit.model(drafters.ENDINGS[0], 1.0)
    run = kit.Run(method, lm=lm)
    assert run.alter(eos=()).texts() != kit.plain(method, 0.0, lm=lm)


@pytest.mark.parametrize("more", [1, -1])
def test_fault_rollback_off_by_one(more):
    run = kit.Run(RECYCLING, 0.8)
    sound = run.parts.program.policy

    def retain(state, cache, outcome):
        cache, state = sound.retain(state, cache, outcome)
        # Not in prefill, which would never end.
        wrong = 0 if outcome.tree.linear else more
        return cache.replace(length=cache.length + wrong), state

    run.alter(policy=sound._replace(retain=retain))
    state = run.advance(run.start(), 2)
    again = drafters.prefilled(kit.Run(RECYCLING, 0.8), state)
    assert drafters.committed(state) != again


def test_requests_are_known_by_their_key_alone():
    """One seed for all is the same as that seed for each."""
    one = kit.generate(Method(), 0.8, seed=4)
    listed = kit.generate(Method(), 0.8, seed=[4, 4, 4, 4])
    assert one.tokens == listed.tokens
