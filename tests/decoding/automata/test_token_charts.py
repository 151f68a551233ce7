"""Charts of canvases against all texts, of 6 tokens and V = 4 at most."""

import functools
import itertools

import jax
import numpy as np
import pytest

from decoding import vocab
from decoding.automata import token_charts, token_rules

EOS = 0


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
    """The tables of a case and V; token 0 ends a text."""
    source, letters, _ = CASES[name]
    tokens = [b"", *(c.encode() for c in letters)]
    rules = token_rules.rules(source, tokens, len(tokens))
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


def wrong(name: str, length: int, stride: int, ask=possible, words=fillings) -> int:
    """Count answers unlike those of all texts."""
    of, size = grammar(name)
    canvases, truth = every_canvas(size, length, stride), table(name, length, size)
    at = np.where(canvases < 0, size, canvases)
    count = (np.asarray(ask(of, canvases)) != truth[tuple(at.T)]).sum()
    masks = np.asarray(
        jax.vmap(jax.vmap(lambda w: vocab.members(w, size)))(words(of, canvases))
    )
    for position in range(length):
        for token in range(size):
            filled = at.copy()
            filled[:, position] = token
            count += (masks[:, position, token] != truth[tuple(filled.T)]).sum()
    return int(count)


# Of sums, with 5 tokens, not all canvases of 6 entries.
STRIDES = {"sums": 7}


@pytest.mark.parametrize("length", [1, 2, 3, 6])
@pytest.mark.parametrize("name", CASES)
def test_answers_are_those_of_all_texts(name, length):
    stride = STRIDES.get(name, 1) if length == 6 else 1
    assert wrong(name, length, stride) == 0


@pytest.mark.long
@pytest.mark.parametrize("length", [4, 5, 6])
@pytest.mark.parametrize("name", CASES)
def test_answers_are_those_of_all_texts_of_every_length(name, length):
    assert wrong(name, length, 1) == 0
