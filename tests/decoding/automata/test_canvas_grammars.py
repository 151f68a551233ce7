"""Grammars of a call's canvases: tables side by side, or the host for all."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding.automata import canvas_grammars, compiled
from decoding.automata.compiled import Grammar
from models.errors import ConstraintError

TOKENS, EOS = [b"a", b"b", b"ab", b""], 3
SOURCES = (
    Grammar("regex", "(ab)*"),
    None,
    Grammar("regex", "a{2}b|b{3}"),
    Grammar("gbnf", 'root ::= ("a" root "b")*', "root"),
)
CANVASES = np.array([[0, -1, -1], [1, -1, -1], [2, 3, -1], [-1, -1, -2]], np.int32)
# Of each source: which canvases have a filling.
TRUTH = [[1, 0, 1, 1], [1, 1, 1, 1], [1, 1, 0, 1], [1, 0, 1, 1]]


@pytest.fixture(scope="module")
def compiler() -> compiled.Compiler:
    return compiled.Compiler(TOKENS, (EOS,), 4)


def answers(compiler, sources, index):
    holes = canvas_grammars.holes(compiler, sources, index)
    state = holes.init(jnp.zeros(1, jnp.int32), jnp.int32(0))
    return jax.vmap(lambda canvas: holes.possible(state, canvas))(CANVASES).tolist()


@pytest.mark.parametrize("number", [3, 4])
def test_each_row_has_its_own_grammar(compiler, number):
    """Three regular ones on the device; with a fourth, all on the host."""
    sources = SOURCES[:number]
    assert canvas_grammars.is_regular(sources) == (number == 3)
    for index in range(number):
        assert answers(compiler, sources, index) == [bool(x) for x in TRUTH[index]]
    assert TRUTH[0] != TRUTH[2]  # planted: another row's grammar


def test_alone_as_among_others(compiler):
    for index, source in enumerate(SOURCES):
        assert answers(compiler, (source,), 0) == [bool(x) for x in TRUTH[index]]


def test_rows_differ_by_a_number_alone(compiler):
    """So that states of several prompts have equal tables."""
    states = [
        canvas_grammars.holes(compiler, SOURCES[:3], i).init(jnp.zeros(1), jnp.int32(0))
        for i in range(3)
    ]
    assert [int(state.row) for state in states] == [0, 1, 2]
    for state in states[1:]:
        same = jax.tree.map(np.array_equal, state.shared, states[0].shared)
        assert all(jax.tree.leaves(same))


def test_canonical_spelling_is_refused(compiler):
    for kind, text in (("regex", "ab"), ("gbnf", 'root ::= "ab"')):
        source = Grammar(kind, text, "" if kind == "regex" else "root", canonical=True)
        with pytest.raises(ConstraintError, match="canonical"):
            answers(compiler, (source,), 0)
