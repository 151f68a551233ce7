"""Canvases of token automata against all fillings, of 6 tokens and V = 4 at most."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding import vocab
from decoding.automata import completions, regex_syntax, token_dfa, utf8

TOKENS, EOS = [b"a", b"b", b"ab", b""], 3
PATTERNS = ["(ab)*", "a{2}b|b{3}", "(a|bb)*ab", "[ab]{4}"]

completable = jax.jit(jax.vmap(completions.completable, (None, 0)))
fillings = jax.jit(jax.vmap(completions.fillings, (None, 0)))


def compiled(pattern: str) -> token_dfa.TokenDFA:
    dfa = utf8.byte_automaton(regex_syntax.automaton(pattern))
    return completions.with_end(token_dfa.lift(dfa, TOKENS, 4), (EOS,))


def accepted(dfa: token_dfa.TokenDFA, length: int) -> np.ndarray:
    """Return every sequence of tokens that is accepted, [N, length]."""
    rows = np.array(list(itertools.product(range(4), repeat=length)))
    state = np.full(len(rows), dfa.start)
    for tokens in rows.T:
        after = dfa.next[np.maximum(state, 0), dfa.classes[tokens]]
        state = np.where(state < 0, -1, after)
    return rows[(state >= 0) & dfa.accept[np.maximum(state, 0)]]


def every_canvas(length: int) -> np.ndarray:
    return np.array(list(itertools.product(range(-1, 4), repeat=length)))


def agreeing(texts: np.ndarray, canvas: np.ndarray) -> np.ndarray:
    return ((canvas[:, None] < 0) | (canvas[:, None] == texts)).all(-1)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_completable_is_that_a_filling_is_accepted(pattern):
    """Planted: gaps of any length, which admit what nothing fills."""
    dfa = compiled(pattern)
    tables = completions.tables(dfa)
    closed = np.asarray(tables.moves) | np.eye(len(tables.accept), dtype=bool)
    for _ in range(8):
        closed = closed.astype(int) @ closed > 0
    gaps, admitted = tables.replace(moves=jnp.asarray(closed)), 0
    for length in (1, 2, 4, 6):
        canvas = every_canvas(length)
        truth = agreeing(accepted(dfa, length), canvas).any(1)
        assert np.array_equal(completable(tables, canvas), truth)
        loose = np.asarray(completable(gaps, canvas))
        assert (loose >= truth).all()
        admitted += int((loose & ~truth).sum())
    assert admitted


@pytest.mark.parametrize("pattern", PATTERNS)
def test_fillings_are_those_of_accepted_texts(pattern):
    """At holes and at tokens, whose entry does not count. Planted: no backward pass."""
    dfa = compiled(pattern)
    tables, differs = completions.tables(dfa), False
    every = tables.replace(accept=jnp.ones_like(tables.accept))
    for length in (1, 3, 5):
        canvas, texts = every_canvas(length)[::3], accepted(dfa, length)
        words = fillings(tables, canvas)
        masks = np.asarray(jax.vmap(jax.vmap(lambda w: vocab.members(w, 4)))(words))
        for position in range(length):
            for token in range(4):
                filled = canvas.copy()
                filled[:, position] = token
                truth = agreeing(texts, filled).any(1)
                assert np.array_equal(masks[:, position, token], truth)
        differs |= not np.array_equal(words, fillings(every, canvas))
    assert differs


def test_a_text_that_is_over_goes_on_with_its_end():
    dfa = compiled("ab")
    tables = completions.tables(dfa)
    canvas = np.array([[2, -1, -1], [-1, -1, -1], [3, -1, -1]])
    assert completable(tables, canvas).tolist() == [True, True, False]
    words = fillings(tables, canvas)
    assert words[0, :, 0].tolist() == [0b101, 0b1000, 0b1000]
    assert words[1, :, 0].tolist() == [0b101, 0b1010, 0b1000]


def test_an_automaton_without_texts():
    table = np.full((1, 1), token_dfa.DEAD, np.int32)
    empty = token_dfa.TokenDFA(table, np.zeros(4, np.int32), np.ones(1, bool), -1)
    tables = completions.tables(empty)
    assert not completable(tables, np.full((1, 3), -1))[0]
    assert not fillings(tables, np.full((1, 3), -1)).any()


def test_patterns_of_like_size_share_a_program():
    shapes = {
        jax.tree.map(
            jnp.shape,
            completions.tables(compiled(p)),
        ).next
        for p in ("a{5}", "a{6}")
    }
    assert len(shapes) == 1


def random_automaton(rng: np.random.Generator, states: int = 6) -> token_dfa.TokenDFA:
    """Draw an automaton over 4 tokens, a third of whose moves are forbidden."""
    step = rng.integers(0, states, (states, 3))
    step[rng.random(step.shape) < 1 / 3] = token_dfa.DEAD
    accept = rng.random(states) < 0.3
    drawn = token_dfa.TokenDFA(step, np.array([0, 1, 2, 0], np.int32), accept, 0)
    return completions.with_end(drawn, (EOS,))


def differences(automata: int, canvases: int, length: int = 6) -> tuple[int, int]:
    """Count wrong words of canvases of 1 to 6 entries; those of no backward pass."""
    rng, wrong, loose = np.random.default_rng(0), 0, 0
    for _ in range(automata):
        dfa = random_automaton(rng)
        tables = completions.tables(dfa)
        size = rng.integers(1, length + 1)
        texts = accepted(dfa, size)
        rows = rng.integers(0, 4, (canvases, size))
        if len(texts):
            rows[::2] = texts[rng.integers(0, len(texts), len(rows[::2]))]
        holes = rng.random(rows.shape) < rng.random((canvases, 1))
        canvas = np.where(holes, -1, rows)
        padded = np.pad(canvas, [(0, 0), (0, length - size)], constant_values=-2)
        words = np.asarray(fillings(tables, padded))[..., 0]
        every = tables.replace(accept=jnp.ones_like(tables.accept))
        loose += int((np.asarray(fillings(every, padded))[..., 0] != words).sum())
        truth = np.zeros_like(words)
        for position in range(size):
            other = np.delete(np.arange(size), position)
            fits = agreeing(texts[:, other], canvas[:, other])
            for token in range(4):
                may = (fits & (texts[:, position] == token)).any(1)
                truth[:, position] |= may.astype(np.uint32) << token
        possible = agreeing(texts, canvas).any(1)
        wrong += int((np.asarray(completable(tables, padded)) != possible).sum())
        wrong += int((words != truth).sum())
    return wrong, loose


def test_random_automata():
    """1,000 canvases; planted: no backward pass."""
    wrong, loose = differences(20, 50)
    assert wrong == 0 and loose > 0


@pytest.mark.long
def test_five_thousand_canvases_of_random_automata():
    assert differences(50, 100)[0] == 0
