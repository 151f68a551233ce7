"""FS-GEN's routers against a simulation by table look-up."""

import dataclasses

import numpy as np
import pytest

from decoding import Method, base
from decoding.conformance import kit
from decoding.drafters import fs_gen
from models.errors import MethodError
from models.synthetic import toy
from tests.decoding.drafters import kit as drafter_kit

THRESHOLDS = {"confidence": 0.45, "margin": 0.1}


def method(router: str, length: int = 3) -> Method:
    level = THRESHOLDS.get(router, 0.5)
    return Method(
        kit.spec("drafters/fs_gen", router=router, length=length, threshold=level),
        verifier=kit.spec("verifiers/accept_drafted"),
    )


def by_hand(router: str, prompt: list[int]) -> tuple[list[int], list[bool]]:
    """The greedy text, and where the large model was asked."""
    text, asked = list(prompt), []
    for _ in range(kit.NEW):
        second, first = np.sort(toy.law(kit.DRAFT.params, text))[-2:]
        score = {"confidence": first, "margin": (first - second) / 2}[router]
        asked.append(bool(score < THRESHOLDS[router]))
        lm = kit.TARGET if asked[-1] else kit.DRAFT
        text.append(int(toy.logits(lm.params, text).argmax()))
    return text[len(prompt) :], asked


@pytest.mark.parametrize(
    ("router", "length"), [("confidence", 1), ("confidence", 3), ("margin", 3)]
)
def test_equals_the_simulation(router, length):
    out = kit.generate(method(router, length))
    shares = []
    for i, prompt in enumerate(kit.PROMPTS):
        text, asked = by_hand(router, prompt)
        assert out.tokens[i] == text
        assert [depth == 0 for depth in out.origin[i]] == asked
        shares.append(np.mean(asked))
    assert 0 < np.mean(shares) < 1


@pytest.mark.long
@pytest.mark.parametrize(
    "temperature", [pytest.param(0.0, marks=pytest.mark.long), 0.8]
)
def test_always_is_the_large_model_and_never_the_small(temperature):
    for router, lm in (("always", kit.TARGET), ("never", kit.DRAFT)):
        out = kit.generate(method(router), temperature)
        assert out.guarantee == base.LOSSY
        assert out.tokens == kit.plain(Method(), temperature, lm=lm)


def thresholds(**arguments) -> list[float]:
    """t of one row."""
    model, params = kit.DRAFT.model, {"draft": kit.DRAFT.params}
    ctx = dataclasses.replace(drafter_kit.context([[1]]), params=params)
    state = fs_gen.drafter(model, **arguments).init(ctx)
    return state.row[1].threshold.tolist()


def test_thresholds_are_the_driver_s():
    """0.5 and 0.2; planted: at 0.5 a margin, (p_1 - p_2) / 2 <= 0.5, always asks."""
    assert thresholds() == [0.5]
    margin = thresholds(router="margin")
    assert margin == pytest.approx([0.2])
    assert thresholds(router="margin", threshold=0.5) != margin


def test_fault_the_router_looks_one_token_late():
    """Planted: the unsure token itself is kept, and the next one is asked for."""
    run = kit.Run(method("confidence"))
    sound = run.parts.program.drafter

    def draft(keys, ctx, state):
        nodes, state, cache = sound.draft(keys, ctx, state)
        one_more = (nodes.kind[:, :-1] == base.CANDIDATE).astype(int) * base.CANDIDATE
        return nodes.replace(kind=nodes.kind.at[:, 1:].set(one_more)), state, cache

    run.alter(drafter=sound._replace(draft=draft))
    assert run.texts() != [by_hand("confidence", p)[0] for p in kit.PROMPTS]


def test_bad_arguments():
    with pytest.raises(MethodError, match="router='svm'"):
        fs_gen.drafter(None, router="svm")
