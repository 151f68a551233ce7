"""Speculative Jacobi decoding: its window by hand, its law with the paper's coins."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding import Method, base
from decoding.conformance import kit, laws
from decoding.drafters import speculative_jacobi
from models.errors import MethodError
from models.synthetic import toy
from tests.decoding.drafters import kit as hands

WINDOW = 4
PROMPT, LENGTH, ROWS, CALLS = [1, 2], 3, 4096, 2  # seeds 0 and 1: n = 8192
TARGET = kit.model(0, vocab=4)


def method(init: str, **arguments) -> Method:
    spec = kit.spec("drafters/speculative_jacobi", window=WINDOW, init=init)
    return Method(spec, **arguments)


def by_hand(prompt: list[int], rounds: int) -> list[int]:
    """Tokens committed by each round of greedy Jacobi iteration, init "repeat"."""
    text, window, made = list(prompt), [], []
    best = lambda context: int(toy.logits(kit.TARGET.params, context).argmax())
    for _ in range(rounds):
        window = window + [(window or text)[-1]] * (WINDOW - len(window))
        truth = [best(text + window[:i]) for i in range(WINDOW + 1)]
        same = int(np.cumprod(np.equal(window, truth[:-1])).sum())
        text, window = text + truth[: same + 1], truth[same + 1 :]
        made.append(same + 1)
    return made


def test_rounds_are_jacobi_iterations():
    run = kit.Run(method("repeat"))
    state, lengths = run.start(), []
    for _ in range(9):
        lengths.append(np.asarray(state.length))
        state = run.advance(state, 1)
    made = np.diff(np.stack(lengths), axis=0).T.tolist()
    assert made == [by_hand(prompt, 8) for prompt in kit.PROMPTS]
    assert max(n for row in made for n in row) > 1


def counts(run: kit.Run) -> np.ndarray:
    found = np.zeros((4,) * LENGTH, np.int64)
    for seed in range(CALLS):
        state = run.start([PROMPT], new=LENGTH, n=ROWS, seed=seed, size=16)
        tokens = np.asarray(run.advance(state).tokens)[:, 2:][:, :LENGTH]
        np.add.at(found, tuple(tokens.T), 1)
    return found


LAW = toy.sequence_law(TARGET.params, PROMPT, LENGTH)
PAPER = {"verifier": kit.spec("verifiers/rejection")}


@pytest.mark.parametrize("init", ["random", "sample"])
def test_law_with_the_papers_coins(init):
    """Level 10^-3 over both cases (Bonferroni)."""
    run = kit.Run(method(init, **PAPER), 1.0, lm=TARGET).alter(chunk=2)
    assert laws.chi_square(counts(run), LAW) > 5e-4


def test_fault_another_law_than_the_draw_s():
    """Planted: q of every kept position is replaced by the uniform law."""
    run = kit.Run(method("random", **PAPER), 1.0, lm=TARGET)
    sound = run.parts.program.drafter

    def draft(keys, ctx, state):
        nodes, state, cache = sound.draft(keys, ctx, state)
        return nodes.replace(logits=nodes.logits * 0), state, cache

    run.alter(chunk=2, drafter=sound._replace(draft=draft))
    assert laws.chi_square(counts(run), LAW) < 1e-6


def test_fresh_positions_are_one_hot():
    """Before the first round nothing is known: tokens are uniform, q is certain."""
    drafter = speculative_jacobi.drafter(8, 3, "random", base.IID)
    ctx = hands.context([[1, 2], [3]])
    nodes, _, _ = drafter.draft(hands.keys(2), ctx, drafter.init(ctx))
    logq = jnp.take_along_axis(
        jax.nn.log_softmax(nodes.logits[:, :-1]), nodes.tokens[:, 1:, None], -1
    )
    assert (logq == 0).all() and nodes.draw == base.IID


def test_bad_arguments():
    with pytest.raises(MethodError, match="init='horizon'"):
        speculative_jacobi.drafter(8, init="horizon")
