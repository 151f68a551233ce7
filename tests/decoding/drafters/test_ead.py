"""Entropy adaptive decoding against a simulation by table look-up."""

import numpy as np
import pytest

from decoding import Method, base
from decoding.conformance import kit
from decoding.drafters import ead
from models.errors import MethodError
from models.synthetic import toy

WINDOW, TAU, DWELL = 3, 1.9, 4


def method(length: int = 4, **arguments) -> Method:
    fields = {"window": WINDOW, "threshold": TAU, "dwell": DWELL, **arguments}
    return Method(
        kit.spec("drafters/ead", length=length, **fields),
        verifier=kit.spec("verifiers/accept_drafted"),
    )


def bits(logits: np.ndarray) -> float:
    p = np.exp(logits.astype(np.float64) - logits.max())
    p = p / p.sum()
    return float(-(p * np.log2(p)).sum())


def by_hand(prompt: list[int], tau: float = TAU) -> tuple[list[int], list[bool]]:
    """The greedy text, and which of its tokens the large model wrote."""
    text, entropies, since, large, wrote = list(prompt), [], 0, False, []
    for _ in range(kit.NEW):
        logits = toy.logits((kit.TARGET if large else kit.DRAFT).params, text)
        text.append(int(logits.argmax()))
        wrote.append(large)
        entropies.append(bits(logits))
        since += 1
        if since >= DWELL:
            wants = float(np.mean(entropies[-WINDOW:])) > tau
            since = 0 if wants != large else since
            large = wants
    return text[len(prompt) :], wrote


def test_entropy_of_equal_logits_is_the_log_of_the_vocabulary():
    assert abs(bits(np.zeros(8)) - 3) < 1e-12


@pytest.mark.parametrize("length", [1, 4])
def test_equals_the_simulation(length):
    """Both models speak, whatever the block; the origin of a token says who did."""
    out = kit.generate(method(length))
    for i, prompt in enumerate(kit.PROMPTS):
        text, wrote = by_hand(prompt)
        assert out.tokens[i] == text
        assert [depth == 0 for depth in out.origin[i]] == wrote
        changes = np.flatnonzero(np.diff(np.array(wrote).astype(int)))
        assert (np.diff(changes) >= DWELL).all()
    assert any(any(by_hand(p)[1]) for p in kit.PROMPTS)


@pytest.mark.parametrize(
    "temperature", [pytest.param(0.0, marks=pytest.mark.long), 0.8]
)
def test_the_extremes_are_one_model(temperature):
    small = kit.generate(method(threshold=99.0), temperature)
    assert small.tokens == kit.plain(Method(), temperature, lm=kit.DRAFT)
    large = kit.generate(method(threshold=-1.0), temperature)
    for text, mine in zip(small.tokens, large.tokens):
        assert mine[:DWELL] == text[:DWELL]
    assert all(d == 0 for row in large.origin for d in row[DWELL:])


def test_fault_the_large_model_s_entropy_is_not_noted():
    """Planted: once the large model speaks, it never hands back in time."""
    run = kit.Run(method())
    sound = run.parts.program.drafter

    def observe(ctx, state, outcome):
        after = sound.observe(ctx, state, outcome)
        return base.State((after.row[0], state.row[1]))

    run.alter(drafter=sound._replace(observe=observe))
    assert run.texts() != [by_hand(p)[0] for p in kit.PROMPTS]


def test_bad_arguments():
    with pytest.raises(MethodError, match="window=0"):
        ead.drafter(None, window=0)
