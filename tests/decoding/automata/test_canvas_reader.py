"""What canvases are to a machine, before any summary."""

import numpy as np
import pytest

from decoding.automata import grammar_compiler, json_schema, token_outcomes
from decoding.automata.canvas_reader import NO_TOKEN, CanvasReader
from decoding.automata.token_outcomes import NO_CALLER
from models.errors import ConstraintError

NESTED = grammar_compiler.compile_grammar("gbnf", 'root ::= "(" root ")" | "x"')
TOKENS = [b"", b"<pad>", b"((", b"x)", b")", b""]


def reader() -> CanvasReader:
    return CanvasReader(NESTED, TOKENS, eos=(0,), pads=(1,))


def test_ends_and_pads_are_in_no_text():
    """Planted: the pad's bytes, which are a text of tokens elsewhere."""
    shared = reader()
    languages = [shared.language(token) for token in (0, 1, 5, 6)]
    assert languages == [NO_TOKEN] * 4
    assert shared.language(2) != shared.language(4) != shared.hole
    assert CanvasReader(NESTED, TOKENS, (0,)).language(1) != NO_TOKEN


def test_where_a_text_may_be_over():
    """Planted: a pad in front of every EOS, a token behind one."""
    shared, tails = reader(), [True]
    for canvas, expected in [
        ([2, 0, 1], [False, True, False, True]),
        ([2, 0, 0], [False, True, True, True]),
        ([-1, 1, 1], [True, False, False, True]),
        ([-1, -1, 2], [False, False, False, True]),
        ([], [True]),
    ]:
        tails = shared.tails(np.array(canvas, int))
        assert tails == expected


def test_reaches_every_place_of_every_filling():
    """All texts of three tokens. Planted: nothing returns to a caller."""
    shared = reader()
    reached = shared.reach([shared.language(t) for t in (2, 3, 4)])
    assert all(reached)
    outcomes = shared.outcomes
    callers = [{outcomes.targets[i].caller for i in targets} for targets in reached]
    assert [callers_ != {NO_CALLER} for callers_ in callers] == [
        True,
        True,
        False,
        False,
    ]
    holes = shared.reach([shared.hole] * 3)
    assert all(few <= many for few, many in zip(reached, holes))
    outcomes.behind = lambda *_: token_outcomes.NOTHING
    shared._steps.clear()
    lost = shared.reach([shared.language(t) for t in (2, 3, 4)])
    assert not lost[-1]


def test_a_token_that_nothing_reads_ends_all():
    shared = reader()
    assert shared.reach([shared.language(4)])[-1] == frozenset()
    assert shared.reach([NO_TOKEN])[-1] == frozenset()


def test_refuses_a_grammar_without_texts():
    with pytest.raises(ConstraintError, match="no text"):
        CanvasReader(NESTED._replace(start=-1), TOKENS, (0,))


def test_long_bounds_of_strings_need_the_length_of_canvases():
    """Planted: no length, with which such a grammar is refused."""
    schema = {"type": "string", "maxLength": 5000}
    machine = json_schema.compile_schema(schema, "compact", False)
    tokens = [b"", b'"', b"ab"]
    shared = CanvasReader(machine, tokens, (0,), longest=4)
    reached = shared.reach([shared.language(t) for t in (1, 2, 1)])
    assert all(reached)
    with pytest.raises(ConstraintError, match="5001 counts"):
        CanvasReader(machine, tokens, (0,))
