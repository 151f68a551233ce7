"""Charts of canvases against all texts, of 6 tokens and V = 4 at most."""

import functools
import itertools

import jax
import numpy as np
import pytest

from decoding.automata import token_charts, token_rules

EOS, VOCAB, LONGEST = 0, 5, 6


def is_dyck(text: str) -> bool:
    depth = 0
    for char in text:
        depth += 1 if char == "(" else -1
        if depth < 0:
            return False
    return depth == 0


def is_sum(text: str) -> bool:
    """Terms "x" or a sum in brackets, joined by "+"."""
    while "x" in text and (shorter := text.replace("(x)", "x").replace("x+x", "x")):
        if shorter == text:
            break
        text = shorter
    return text == "x"


def is_copy(text: str) -> bool:
    """As many b as a, then any number of c."""
    body = text.rstrip("c")
    half = len(body) // 2
    return body == "a" * half + "b" * half


# Name: grammar, tokens, and who is in the language.
CASES = {
    "dyck": ('root ::= ("(" root ")")*', "()", is_dyck),
    "palindromes": (
        'root ::= "a" root "a" | "b" root "b" | [ab]?',
        "ab",
        lambda text: text == text[::-1],
    ),
    "sums": ('root ::= t | root "+" t\nt ::= "x" | "(" root ")"', "x+(", None),
    "counts": ('root ::= p "c"*\np ::= "a" p "b" | ""', "abc", is_copy),
}
CASES["sums"] = (CASES["sums"][0], "x+()", is_sum)

possible = jax.jit(jax.vmap(token_charts.possible, (None, 0)))
fillings = jax.jit(jax.vmap(token_charts.fillings, (None, 0)))


def grammar(name: str) -> tuple[token_charts.Tables, int]:
    """The tables of a case, and its tokens; token 0 ends a text."""
    source, letters, _ = CASES[name]
    tokens = [b"", *(c.encode() for c in letters)]
    rules = token_rules.rules(source, tokens, VOCAB)
    return token_charts.tables(rules, (EOS,)), len(tokens)


@functools.cache
def texts(name: str, length: int) -> np.ndarray:
    """Every canvas without holes that is a text and its end, int32[N, length]."""
    _, letters, is_text = CASES[name]
    rows = []
    for row in itertools.product(range(len(letters) + 1), repeat=length):
        size = next((i for i, token in enumerate(row) if token == EOS), length)
        text = "".join(letters[t - 1] for t in row[:size])
        if not any(row[size:]) and is_text(text):
            rows.append(row)
    return np.array(rows, np.int32).reshape(len(rows), length)


def every_canvas(size: int, length: int, stride: int = 1) -> np.ndarray:
    rows = itertools.product(range(-1, size), repeat=length)
    return np.array([*itertools.islice(rows, 0, None, stride)], np.int32)


def table(name: str, length: int, size: int) -> np.ndarray:
    """Which canvases have a filling, bool[V + 1, ...]: by their entries, holes last."""
    answers = np.zeros((size + 1,) * length, bool)
    if len(rows := texts(name, length)):
        answers[tuple(rows.T)] = True
    for axis in range(length):
        part = np.moveaxis(answers, axis, 0)
        part[size] = part[:size].any(0)
    return answers


def wrong(name: str, stride: int = 1, ask=possible, words=fillings) -> int:
    """Count answers unlike those of all texts, of canvases of 1 to 6 entries."""
    (of, size), count = grammar(name), 0
    for length in range(1, LONGEST + 1):
        canvases = every_canvas(size, length, stride if length > 3 else 1)
        truth, at = table(name, length, size), np.where(canvases < 0, size, canvases)
        # One program for all lengths, and few for all numbers of canvases.
        more = -len(canvases) % 512, LONGEST - length
        padded = np.pad(canvases, [(0, m) for m in more], constant_values=-2)
        answers, bits = np.asarray(ask(of, padded)), np.asarray(words(of, padded))
        masks = bits >> np.arange(size, dtype=np.uint32) & 1
        count += (answers[: len(at)] != truth[tuple(at.T)]).sum()
        for position in range(length):
            for token in range(size):
                filled = at.copy()
                filled[:, position] = token
                right = truth[tuple(filled.T)]
                count += (masks[: len(at), position, token] != right).sum()
        count += masks[:, length:].sum()
    return int(count)


@pytest.mark.parametrize("name", CASES)
def test_answers_are_those_of_all_texts(name):
    """A sample of the longer canvases."""
    assert wrong(name, {"sums": 53, "counts": 17}.get(name, 5)) == 0


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_answers_are_those_of_all_texts_for_every_canvas(name):
    assert wrong(name) == 0


def padded(canvas: list[int], size: int = LONGEST) -> np.ndarray:
    """One canvas among 512, so that a program serves all."""
    rows = np.full((512, size), -2, np.int32)
    rows[0, : len(canvas)] = canvas
    return rows


def is_possible(canvas: list[int]) -> bool:
    return bool(possible(grammar("dyck")[0], padded(canvas))[0])


def loose(canvas: list[int]) -> bool:
    """Whether a text exists if a run of holes may be of any length, even 0."""
    runs = [[*part] for part in canvas_parts(canvas)]
    gaps = [i for i, run in enumerate(runs) if run[0] < 0]
    for sizes in itertools.product(range(5), repeat=len(gaps)):
        for i, size in zip(gaps, sizes):
            runs[i] = [-1] * size
        text = [token for run in runs for token in run]
        if len(text) <= LONGEST and is_possible(text):
            return True
    return False


def canvas_parts(canvas: list[int]) -> list[list[int]]:
    """Split a canvas into runs of holes and of tokens."""
    return [[*part] for _, part in itertools.groupby(canvas, lambda token: token < 0)]


def test_fault_gaps_of_any_length():
    """Planted: `(?)` and `())?` by gaps that take any number of tokens."""
    for canvas, exact, any_length in (
        ([1, -1, 2], False, True),
        ([1, 2, -1], True, True),
        ([-1, 2, 2], False, True),
        ([1, 2, 2, -1], False, False),
        ([-1, 1], False, False),
    ):
        assert is_possible(canvas) == exact
        assert loose(canvas) == any_length


def test_an_outside_chart_left_out_allows_too_much():
    """Planted: a token that some nonterminal reads, whatever stands beside it."""
    careless = lambda of, canvases: np.full((*canvases.shape, 1), 0b111, np.uint32)
    assert wrong("dyck", 5, words=careless) > 0


def test_a_text_that_is_over_goes_on_with_its_end():
    of, _ = grammar("counts")
    words = fillings(of, padded([1, 2, -1, -1]))[0, :4, 0]
    # In place of the first token another one may stand, too: c, or the end.
    assert words.tolist() == [0b0010, 0b0110, 0b1001, 0b1001]
    words = fillings(of, padded([1, 2, -1, 0]))[0, :4, 0]
    assert words.tolist() == [0b0010, 0b0100, 0b1001, 0b1001]
