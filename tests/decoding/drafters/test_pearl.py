"""PEARL: what a round commits, step by step, its law with the paper's coins, and the
acceptance of a perfect draft."""

import types

import numpy as np
import pytest

from decoding import Method
from decoding.conformance import kit, laws
from decoding.drafters import pearl
from models.errors import MethodError
from models.synthetic import toy

GAMMA = 3
METHOD = Method(kit.spec("drafters/pearl", gamma=GAMMA), transforms=kit.COMMON)


def near(target, other):
    """A draft model that is often of the target's opinion."""
    table = target.params["table"] + 0.5 * other.params["table"]
    fields = {**vars(target), "params": {**target.params, "table": table}}
    return types.SimpleNamespace(**fields)


DRAFT = near(kit.TARGET, kit.DRAFT)


def by_hand(prompt: list[int], rounds: int) -> list[int]:
    """Tokens committed by each round of the paper's state machine, greedily."""
    text, tail, made = list(prompt), [], []
    for _ in range(rounds):
        new = kit.greedy_by_hand(DRAFT.params, text + tail, GAMMA)
        block = [*tail, new[0]]
        truth = kit.greedy_by_hand(kit.TARGET.params, text, len(block))
        same = int(np.cumprod(np.equal(block, truth)).sum())
        if same == len(block):
            text, tail = text + block, new[1:]  # to, or on with, post-verify
        else:
            text, tail = text + truth[: same + 1], []  # to pre-verify
        made.append(min(same + 1, len(block)))
    return made


def test_rounds_are_the_papers():
    run = kit.Run(Method(METHOD.drafter), draft=DRAFT)
    state, lengths = run.start(), []
    rounds = 12
    for _ in range(rounds + 1):
        lengths.append(np.asarray(state.length))
        state = run.advance(state, 1)
    made = np.diff(np.stack(lengths), axis=0).T.tolist()
    expected = [by_hand(prompt, rounds) for prompt in kit.PROMPTS]
    assert made == expected
    assert {1, 2, GAMMA} <= {n for row in made for n in row}


@pytest.mark.parametrize(
    "temperature", [pytest.param(0.0, marks=pytest.mark.long), 0.8]
)
def test_a_perfect_draft_is_pre_verified_once(temperature):
    """One token, then gamma a round: the draft's length is unbounded."""
    run = kit.Run(METHOD, temperature, draft=kit.TARGET)
    state = run.advance(run.start(new=1 + 4 * GAMMA))
    assert state.counters.target_calls.tolist() == [5] * len(kit.PROMPTS)
    assert state.counters.draft_calls.tolist() == [5 * GAMMA] * len(kit.PROMPTS)


def test_fault_draft_cache_keeps_one_too_many():
    """Planted: the draft's last token, which it never read, counts as read."""
    run = kit.Run(METHOD, 0.0, draft=kit.TARGET)
    sound = run.parts.program.drafter

    def observe(ctx, state, outcome):
        after = sound.observe(ctx, state, outcome)
        if outcome.is_prompt:
            return after
        cache, tail = after.row
        more = (tail.count > 0).astype(int)
        return after.replace(row=(cache.replace(length=cache.length + more), tail))

    run.alter(drafter=sound._replace(observe=observe))
    state = run.advance(run.start(new=1 + 4 * GAMMA))
    assert max(state.counters.target_calls.tolist()) > 5


# n = 8192 texts of 4 tokens (256 cells), seeds 0 and 1, level 10^-3.
PROMPT, LENGTH, ROWS, CALLS = [1, 2], 4, 4096, 2
TARGET = kit.model(0, vocab=4)
LAW = toy.sequence_law(TARGET.params, PROMPT, LENGTH)


def sampled() -> kit.Run:
    """With the coins of `rejection`, which every tail meets."""
    method = Method(METHOD.drafter, verifier=kit.spec("verifiers/rejection"))
    run = kit.Run(method, 1.0, lm=TARGET, draft=near(TARGET, kit.model(1, vocab=4)))
    return run.alter(chunk=2)


def counts(run: kit.Run) -> np.ndarray:
    found = np.zeros((4,) * LENGTH, np.int64)
    for seed in range(CALLS):
        state = run.start([PROMPT], new=LENGTH, n=ROWS, seed=seed, size=16)
        state = run.advance(state)
        np.add.at(found, tuple(np.asarray(state.tokens)[:, 2 : 2 + LENGTH].T), 1)
    assert int(state.counters.accepted.sum()) > ROWS / 4
    return found


@pytest.mark.long
def test_law_with_the_papers_coins():
    assert laws.chi_square(counts(sampled()), LAW) > 1e-3


def test_fault_laws_of_the_token_before():
    """Planted: a token of the tail is verified with the law of the one before it."""
    run = sampled()
    sound = run.parts.program.drafter

    def observe(ctx, state, outcome):
        after = sound.observe(ctx, state, outcome)
        cache, tail = after.row
        return after.replace(row=(cache, tail.replace(verified=tail.laws[:, :-1])))

    run.alter(drafter=sound._replace(observe=observe), chunk=2)
    assert laws.chi_square(counts(run), LAW) < 1e-6


def test_critical_path():
    assert pearl.critical_path([5, 2], 4, 1.0, 3.0) == [20.0, 8.0]
    assert pearl.critical_path([5], 4, 1.0, 6.0) == [30.0]


def test_bad_arguments():
    with pytest.raises(MethodError, match="gamma=1"):
        pearl.drafter(None, gamma=1)
