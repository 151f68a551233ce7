"""FoReaL-Decoding against a simulation by table look-up."""

import numpy as np
import pytest

from decoding import Method, base
from decoding.conformance import kit
from decoding.drafters import foreal
from models.errors import MethodError
from models.synthetic import toy

MARKS = "ce"
ENDS = (2, 4)  # the tokens of those letters


def method(gate: float, lead: int = 2, length: int = 3) -> Method:
    fields = {"gate": gate, "lead": lead, "length": length, "terminators": MARKS}
    return Method(
        kit.spec("drafters/foreal", **fields),
        verifier=kit.spec("verifiers/accept_drafted"),
    )


def by_hand(prompt: list[int], lead: int = 2) -> tuple[list[int], list[bool]]:
    """The greedy text with p = 1, and which tokens the large model wrote."""
    text, left, wrote = list(prompt), lead, []
    for _ in range(kit.NEW):
        large = left > 0
        wrote.append(large)
        lm = kit.TARGET if large else kit.DRAFT
        text.append(int(toy.logits(lm.params, text).argmax()))
        left = lead if text[-1] in ENDS else max(left - 1, 0)
    return text[len(prompt) :], wrote


def test_table_of_ends():
    found = foreal.ends(kit.Letters(), MARKS, kit.VOCAB)
    assert np.flatnonzero(found).tolist() == list(ENDS)


@pytest.mark.parametrize("length", [pytest.param(1, marks=pytest.mark.long), 3])
def test_equals_the_simulation(length):
    out = kit.generate(method(1.0, length=length))
    for i, prompt in enumerate(kit.PROMPTS):
        text, wrote = by_hand(prompt)
        assert out.tokens[i] == text
        assert [depth == 0 for depth in out.origin[i]] == wrote
    assert any(not all(by_hand(p)[1][4:]) for p in kit.PROMPTS)


@pytest.mark.long
@pytest.mark.parametrize(
    "temperature", [pytest.param(0.0, marks=pytest.mark.long), 0.8]
)
def test_the_extremes_are_one_model(temperature):
    weak = kit.generate(method(0.0), temperature)
    assert weak.tokens == kit.plain(Method(), temperature, lm=kit.DRAFT)
    leader = kit.generate(method(1.0, lead=10**6), temperature)
    assert leader.tokens == kit.plain(Method(), temperature)


def test_the_gate_opens_with_its_probability():
    """Of the sentences of 256 texts a share p = 0.3 is led: seed 0, 4 standard errors.

    The first sentence of every text counts, whose gates are independent.
    """
    run = kit.Run(method(0.3))
    state = run.advance(run.start([[1]], new=1, n=256))
    led = int((np.asarray(state.origin)[:, 1] == 0).sum())
    assert abs(led / 256 - 0.3) < 4 * np.sqrt(0.3 * 0.7 / 256)


def test_fault_a_sentence_s_end_is_overlooked():
    """Planted: the leader's own terminators do not end its sentence."""
    run = kit.Run(method(1.0))
    sound = run.parts.program.drafter

    def observe(ctx, state, outcome):
        verdict = outcome.verdict
        blind = verdict.replace(token=verdict.token * 0)
        return sound.observe(ctx, state, outcome.replace(verdict=blind))

    run.alter(drafter=sound._replace(observe=observe))
    assert run.texts() != [by_hand(p)[0] for p in kit.PROMPTS]


def test_bad_arguments():
    with pytest.raises(MethodError, match=r"gate=1\.5"):
        foreal.drafter(None, kit.Letters(), kit.VOCAB, gate=1.5)
    with pytest.raises(MethodError, match="no token has one"):
        foreal.drafter(None, kit.Letters(), kit.VOCAB, terminators="!")
    assert (
        base.LOSSY
        == kit.compose.compose(
            method(0.5), kit.TARGET, 0.0, {"draft": kit.DRAFT}
        ).guarantee
    )
