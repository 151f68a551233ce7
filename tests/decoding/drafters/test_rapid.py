"""RAPID: what is left of a prompt, and that the draft goes on where the text does."""

import jax
import numpy as np
import pytest

from decoding import Method
from decoding.conformance import kit as conformance
from decoding.drafters import rapid
from models.errors import MethodError
from tests.decoding.drafters import kit

CASE = conformance.cases()["rapid-chain"]
CHAIN = Method(CASE.drafter, topology=CASE.topology)  # drafts of 3; 12 tokens in 4s
LONG = [[int(t) for t in np.random.default_rng(i).integers(0, 7, 23)] for i in range(4)]


def shorten(text: list[int], chunk: int, room: int, threshold: float = 0.1) -> list:
    tokens = np.zeros(40, np.int32)
    tokens[: len(text)] = text
    call = jax.jit(rapid._shorten, static_argnums=(2, 3))
    short, size = call(tokens, len(text), chunk, room, threshold)
    return short[: int(size)].tolist()


def test_worked_example():
    """Chunks of 3; the tail 1 2 3 9 asks for the chunks with 1 2 3, in their order."""
    text = [4, 4, 4, 1, 2, 5, 6, 6, 6, 3, 2, 1, 7, 7, 7, 1, 2, 3, 9]
    assert shorten(text, 3, 10) == [1, 2, 5, 3, 2, 1, 1, 2, 3, 9]
    assert shorten(text, 3, 8) == [3, 2, 1, 1, 2, 3, 9]
    assert shorten(text, 3, 40) == text
    assert shorten(text, 3, 40, threshold=0.5) == text  # it fits: nothing is left out
    assert shorten(text, 3, 18, threshold=0.99) == [1, 2, 3, 9]


def test_short_prompts_are_read_whole():
    for size in range(1, 13):
        assert shorten(list(range(size)), 4, 12) == list(range(size))


def test_what_is_left_is_of_the_prompt():
    """60 texts, seed 0: whole chunks of the prompt in order, and its end."""
    rng = np.random.default_rng(0)
    for _ in range(60):
        text = rng.integers(0, 5, rng.integers(13, 40)).tolist()
        short = shorten(text, 4, 12)
        tail = len(text) - (len(text) // 4 - 1) * 4
        assert len(short) <= 12 and short[-tail:] == text[-tail:]
        rest = iter(text[i : i + 4] for i in range(0, len(text) - tail, 4))
        parts = [short[i : i + 4] for i in range(0, len(short) - tail, 4)]
        assert all(part in rest for part in parts)


def accepted(run) -> set[int]:
    return {c for _, count, room in kit.rounds(run, LONG) for c in count[room].tolist()}


@pytest.mark.parametrize(
    "temperature", [pytest.param(0.0, marks=pytest.mark.long), 0.8]
)
def test_the_tail_is_enough_for_the_toy(temperature):
    """The toy looks at two tokens: with the target's weights all drafts are accepted,
    though half of the prompt was left out; so noise and places are the text's."""
    run = conformance.Run(CHAIN, temperature, draft=conformance.TARGET)
    state = run.start(LONG)
    assert (np.asarray(state.drafter.row.left_out) >= 8).all()
    assert accepted(run) == {3}


@pytest.mark.parametrize("fault", ["noise", "place"])
def test_fault_the_shortened_place(fault, monkeypatch):
    """Planted: the noise, or the tokens, of the place in the shortened text."""
    sound = rapid._view

    def view(ctx, row):
        found = sound(ctx, row)
        changes = {"noise": ctx.noise} if fault == "noise" else {"tokens": ctx.tokens}
        return rapid.replace(found, **changes)

    monkeypatch.setattr(rapid, "_view", view)
    run = conformance.Run(CHAIN, 0.8, draft=conformance.TARGET).alter()
    assert min(accepted(run)) < 3


def test_bad_arguments():
    with pytest.raises(MethodError, match="kept=7"):
        rapid.drafter(None, None, chunk=4, kept=7)
    with pytest.raises(MethodError, match="chunk=0"):
        rapid.drafter(None, None, chunk=0)
