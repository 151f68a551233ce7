"""Canvases of byte machines against all fillings, of 6 tokens and V = 4 at most."""

import itertools

import numpy as np
import pytest

from decoding.automata import grammar_compiler, json_schema
from decoding.automata.canvas_reader import CanvasReader
from decoding.automata.canvas_summaries import CanvasSummaries
from tests.decoding.automata import canvases
from tests.decoding.automata.canvases import EOS, PAD

BRACKETS = 'root ::= "" | "(" root ")" root | "[" root "]" root'
SUMS = 'root ::= term ("+" term)*\nterm ::= "1" | "(" root ")"'
# A value has one of two labels.
KINDS = '''root ::= a "e" | b "o"
a ::= "(" a ")" | "x"
b ::= "(" b ")" | "y"'''
# Tokens that cross calls and returns.
GRAMMARS = [
    (BRACKETS, [b"", b"(", b")](", b"]"]),
    (BRACKETS, [b"", b"([", b"])", b")"]),
    (BRACKETS, [b"", b"(", b"))", b")("]),
    (BRACKETS, [b"", b"", b"()[", b"]"]),  # with a pad
    (SUMS, [b"", b"1+", b"(", b"1)"]),
    (SUMS, [b"", b"((1", b")+1", b")"]),
    (SUMS, [b"", b"(1", b"1)", b"+"]),
    (KINDS, [b"", b"((", b"x)", b")e"]),
    (KINDS, [b"", b"(x", b"(y", b")e"]),
]
SCHEMAS = [
    ({"type": "array", "items": {"$ref": "#"}}, [b"", b"[[", b"],[", b"]"]),
    ({"items": {"enum": [1, []]}, "maxItems": 3}, [b"", b"[1", b",1", b"]"]),
    ({"type": "string", "minLength": 2, "maxLength": 3}, [b"", b'"', b"a", b'a"']),
    ({"items": {"type": "string", "minLength": 2}}, [b"", b'["a', b'a"', b"]"]),
]


def reader(machine, tokens) -> CanvasReader:
    ends = [i for i in (EOS, PAD) if not tokens[i]]
    return CanvasReader(machine, tokens, ends[:1], ends[1:])


def machines_and_tokens():
    for source, tokens in GRAMMARS:
        yield grammar_compiler.compile_grammar("gbnf", source), tokens
    for schema, tokens in SCHEMAS:
        schema = {"type": "array", **schema}
        yield json_schema.compile_schema(schema, "compact", False), tokens


CASES = list(machines_and_tokens())


@pytest.mark.parametrize("case", range(len(CASES)))
def test_answers_are_those_of_all_fillings(case):
    machine, tokens = CASES[case]
    assert canvases.wrong(reader(machine, tokens), machine, tokens) == (0, 0)


def test_fault_labels_of_returns_are_ignored():
    """Planted: a caller goes on behind any label as behind one of them."""
    machine, tokens = CASES[8]
    labels = machine.back.shape[1]
    blind = machine._replace(back=np.repeat(machine.back.max(1)[:, None], labels, 1))
    assert sum(canvases.wrong(reader(blind, tokens), machine, tokens)) > 0


def test_fault_gaps_of_any_length():
    """Planted: a hole is none to three tokens. It admits what nothing fills."""
    machine, tokens = CASES[2]
    loose = reader(machine, tokens)
    strings = [
        b"".join(parts)
        for size in range(4)
        for parts in itertools.product(tokens[1:], repeat=size)
    ]
    loose.hole = loose.outcomes.language(strings)
    refused, admitted = canvases.wrong(loose, machine, tokens)
    assert refused == 0 and admitted > 0


@pytest.mark.parametrize("case", [2, 3, 5, 11])
def test_candidates_are_those_of_all_fillings(case):
    """Of each position, a hole or not; the answers of one object stay right.

    Planted: `fillings` that leaves out the values of the other positions.
    """
    machine, tokens = CASES[case]
    shared, rng, faulty = reader(machine, tokens), np.random.default_rng(1), 0
    for length in (1, 3, 5):
        texts = canvases.whole(machine, tokens, length)
        summaries = CanvasSummaries(shared, length)
        for canvas in canvases.drawn(texts, len(tokens), 25, rng):
            for position in range(length):
                filled = canvas.copy()
                wanted = []
                for token in range(len(tokens)):
                    filled[position] = token
                    wanted.append(canvases.agreeing(texts, filled).any())
                answers = summaries.fillings(canvas, position, np.arange(len(tokens)))
                assert answers.tolist() == wanted
                alone = np.full_like(canvas, -1)
                open_ = summaries.fillings(alone, position, np.arange(len(tokens)))
                faulty += open_.tolist() != wanted
            truth = canvases.agreeing(texts, canvas).any()
            assert summaries.possible(canvas) == truth
    assert faulty


def test_commits_in_any_order_and_their_removal():
    """Values are kept across canvases. Planted: those of changed positions as well."""
    machine, tokens = CASES[5]
    shared, rng, differs = reader(machine, tokens), np.random.default_rng(2), False
    texts = canvases.whole(machine, tokens, 6)
    summaries, stale = (CanvasSummaries(shared, 6) for _ in range(2))
    canvas = np.full(6, -1)
    for _ in range(300):
        canvas[rng.integers(6)] = rng.integers(-1, 4)
        truth = canvases.agreeing(texts, canvas).any()
        assert summaries.possible(canvas) == truth
        stale._canvas = np.array(canvas)
        differs |= stale.possible(canvas) != truth
    assert differs


def test_canvases_of_no_token_and_of_unknown_ones():
    machine, tokens = CASES[0]
    shared = reader(machine, tokens)
    assert CanvasSummaries(shared, 0).possible(np.zeros(0, int))  # "" is a text
    assert not CanvasSummaries(shared, 2).possible(np.array([9, -1]))
    answers = CanvasSummaries(shared, 2).fillings(np.array([-1, -1]), 0, [9, 0, 1])
    assert answers.tolist() == [False, True, False]


def test_caches_are_bounded(monkeypatch):
    """Planted: a limit of two; the answers stay."""
    monkeypatch.setattr("decoding.automata.canvas_summaries.MOST", 2)
    monkeypatch.setattr("decoding.automata.canvas_reader.MOST", 2)
    machine, tokens = CASES[4]
    shared = reader(machine, tokens)
    assert canvases.wrong(shared, machine, tokens, count=40) == (0, 0)
    assert len(shared._steps) <= 2
