"""decoding/transforms/dry.py against the rules of its pull request, in Python."""

import functools

import numpy as np
import pytest

from decoding.conformance import kit
from decoding.transforms import dry
from models.errors import MethodError
from tests.decoding.transforms.samplers import run

VOCAB = 8
make = functools.partial(
    dry.transform, vocab_size=VOCAB, tokenizer=kit.Letters(), breakers=(6,)
)


def penalties(text, growth=1.75, allowed=2, window=0, breakers=(6,), most=50):
    """The penalty of each token, matching backwards from every earlier last token."""
    text, found = text[-window:] if window else text, {}
    if text[-1] in breakers:
        return np.zeros(VOCAB)
    for at in range(len(text) - 1):
        follower, length = text[at + 1], 0
        while length < most and length <= at and text[at - length] == text[-1 - length]:
            if text[at - length] in breakers:
                break
            length += 1
        if length and follower not in breakers:
            found[follower] = max(length, found.get(follower, 0))
    out = np.zeros(VOCAB)
    for token, length in found.items():
        if length >= allowed:
            out[token] = 0.8 * growth ** (length - allowed)
    return out


def cases():
    rng = np.random.default_rng(0)
    for length in (1, 5, 12, 30):
        for _ in range(5):
            yield rng.choice([0, 1, 2, 6], length, p=[0.4, 0.3, 0.2, 0.1]).tolist()
    yield [0, 1, 2] * 10
    yield [0, 0, 0, 0]


def gap(text, transform, **fields) -> float:
    out = run(transform, np.zeros(VOCAB), text[:1], text[1:])
    return float(np.abs(-out - penalties(text, **fields)).max())


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"allowed": 1, "window": 7},
        {"growth": 1.2, "allowed": 3},
        {"breakers": (1, 6)},
    ],
    ids=lambda fields: "-".join(fields) or "default",
)
def test_equals_the_rules(fields):
    names = {"allowed": "allowed_length"}
    transform = make(**{names.get(k, k): v for k, v in fields.items()})
    for text in cases():
        want = penalties(text, **fields)
        assert gap(text, transform, **fields) < 1e-4 * max(1, want.max())
    assert max(penalties(text, **fields).max() for text in cases()) > 1


def test_fault_breakers_that_are_matched_through():
    """Planted: no breakers; a match that counts the token itself."""
    assert max(gap(text, make(breakers=())) for text in cases()) > 0.5
    assert max(gap(text, make(allowed_length=1)) for text in cases()) > 0.5


def test_matches_of_more_than_fifty_tokens_cost_what_fifty_cost():
    out = run(make(growth=1.1), np.zeros(VOCAB), [0, 1], [0, 1] * 60, size=130)
    np.testing.assert_allclose(-out[0], 0.8 * 1.1**48, rtol=1e-4)


def test_a_string_means_its_last_token():
    mask = make(breakers=("bg", "c")).init(np.zeros(4, int), 1).shared.breakers
    assert np.flatnonzero(mask).tolist() == [2, 6]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"multiplier": -1.0}, "multiplier=-1.0"),
        ({"growth": 0.0}, "growth=0.0"),
        ({"allowed_length": 0}, "allowed_length=0"),
        ({"window": -3}, "window=-3"),
    ],
)
def test_refuses(fields, words):
    with pytest.raises(MethodError, match=words):
        make(**fields)
