"""Canvases on the host: answers of several rows, in any order, whatever their ends."""

import jax
import jax.numpy as jnp
import numpy as np

from decoding.automata import canvas_matcher, grammar_compiler, numbered

TOKENS, EOS = [b"", b"(", b")"], 0
DYCK = grammar_compiler.compile_grammar("gbnf", 'root ::= ("(" root ")")*')
CANVASES = np.array(
    [[1, -1, -1, -2], [-1, -1, -1, -1], [1, -1, -2, -2], [2, -1, -2, -2]], np.int32
)
TRUTH = [True, True, True, False]


def matcher() -> canvas_matcher.CanvasMatcher:
    return canvas_matcher.CanvasMatcher(DYCK, TOKENS, (EOS,))


def test_rows_are_asked_at_once():
    """Of two matchers, one of which is none; planted: the rows in another order."""
    held = matcher()
    numbers = jnp.full(4, canvas_matcher.NUMBERS.of(held))
    ask = jax.jit(jax.vmap(canvas_matcher.possible))
    assert ask(numbers, CANVASES).tolist() == TRUTH
    assert ask(numbers, CANVASES[::-1]).tolist() == TRUTH[::-1] != TRUTH
    free = numbers.at[3].set(numbered.NONE)
    assert ask(free, CANVASES).tolist() == [True] * 4
    twice = jax.vmap(jax.vmap(canvas_matcher.possible))
    pairs = twice(numbers.reshape(2, 2), CANVASES.reshape(2, 2, 4))
    assert pairs.reshape(-1).tolist() == TRUTH


def test_the_first_token_that_may_stand():
    held = matcher()
    number = canvas_matcher.NUMBERS.of(held)
    ask = jax.jit(jax.vmap(canvas_matcher.first, (None, 0, 0, 0)))
    orders = np.array([[1, 2, 0], [2, 0, 1], [1, 0, 2], [1, 2, 0]], np.int32)
    places = np.array([2, 0, 1, 1], np.int32)
    # `(?)` behind `(`: an end; at the start an end or a bracket; in `(?` a bracket.
    assert ask(number, CANVASES, places, orders).tolist() == [0, 0, 2, -1]
    outside = np.array([-1, 4, 2, 3], np.int32)
    assert ask(number, CANVASES, outside, orders).tolist() == [-1] * 4


def test_answers_do_not_depend_on_earlier_ones():
    held = matcher()
    for canvas, truth in [*zip(CANVASES, TRUTH), *zip(CANVASES[::-1], TRUTH[::-1])]:
        assert held.possible(canvas) == truth == matcher().possible(canvas)
        token = held.first(canvas, 1, np.array([2, 1, 0]))
        assert token == matcher().first(canvas, 1, np.array([2, 1, 0]))
