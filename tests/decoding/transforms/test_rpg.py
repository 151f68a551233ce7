"""RPG against its rules, written over whole texts in Python."""

import functools
import math

import numpy as np
import pytest

from decoding import Method, Spec
from decoding.automata import line_types
from decoding.conformance import kit
from decoding.transforms import rpg
from models.errors import MethodError
from tests.decoding.transforms.samplers import run

TOKENS = [b"a", b"b", b"if", b" ", b"(", b"\n", b"\n ", b"", b"1", b"b\n"]
VOCAB, EOS = len(TOKENS), 7
LEXER = line_types.lexer()


class Words:
    def token_bytes(self):
        return TOKENS


make = functools.partial(rpg.transform, Words(), (EOS,), VOCAB)


def repeated(things: list, most: int) -> tuple[int, int]:
    """The smallest repeated block at the end, at most `most` long, and how often."""
    for size in range(1, min(most, len(things) // 2) + 1):
        last, n = things[-size:], 0
        while (
            things[len(things) - (n + 2) * size : len(things) - (n + 1) * size] == last
        ):
            n += 1
        if n:
            return size, n
    return 0, 0


def lines_of(text: list[int]) -> tuple[list[int], list[int], bool]:
    """Hashes and first tokens of the whole lines; whether the last line is blank."""
    spell = lambda end: b"".join(TOKENS[t] for t in text[:end])
    hashes, firsts, start, count = [], [], 0, 0
    for end in range(1, len(text) + 1):
        whole = line_types.hashes(LEXER, spell(end))[0]
        if len(whole) > count:
            count = len(whole)
            if whole[-1]:
                hashes.append(whole[-1])
                line = (t for t in text[start:end] if TOKENS[t].strip())
                firsts.append(next(line))
            start = end
    last = spell(len(text)).rpartition(b"\n")[2]
    return hashes, firsts, not last.strip()


def penalties(text, tokens=64, lines=32, decay=0.9, ending=0.8) -> np.ndarray:
    out = np.zeros(VOCAB)
    rules = {}
    size, n = repeated(text, tokens)
    if n:
        rules[text[-size]] = n
    hashes, firsts, at_start = lines_of(text)
    size, n = repeated(hashes, lines)
    if n and at_start:
        rules[firsts[-size]] = max(n, rules.get(firsts[-size], 0))
    for token, n in rules.items():
        out[token] = n * math.log(decay)
    starts = [n for token, n in rules.items() if token in (2, 5, 6)]
    out[EOS] -= max(starts, default=0) * math.log(ending)
    return out


def texts():
    rng = np.random.default_rng(0)
    plain = [t for t in range(VOCAB) if t not in (EOS, 6, 9)]
    for length in (2, 6, 13, 30):
        for _ in range(4):
            yield rng.choice(plain, length).tolist()
    for block in ([0], [0, 5], [2, 3, 0, 5], [0, 4, 5, 2, 8, 5], [6, 2, 4, 1], [9]):
        for times in (1, 2, 3, 5):
            yield [8, 4, *block * times]
    yield [0, 5, 1, 5, 0, 5]  # three lines of one type, in other words
    yield [6, 0, 6, 1, 6]
    yield [2, 3, 0, 4, 5, 5, 3, 2, 3, 8, 4, 5, 2, 3, 1, 4, 5]


def gap(transform, text, **fields) -> float:
    """The largest difference from the rules, half of the text read as the prompt."""
    half = (len(text) + 1) // 2
    out = run(transform, np.zeros(VOCAB), text[:half], text[half:])
    return float(np.abs(out - penalties(text, **fields)).max())


@pytest.mark.parametrize(
    "fields",
    [{}, {"tokens": 2, "lines": 1}, {"decay": 0.5, "ending": 0.1}, {"lines": 0}],
    ids=lambda fields: "-".join(fields) or "default",
)
def test_equals_the_rules(fields):
    transform = make(**fields)
    for text in texts():
        assert gap(transform, text, **fields) < 1e-5, text


def test_fault_rules_that_are_left_out():
    """Planted: no lines, shorter blocks, another factor."""
    for fields in ({"lines": 0}, {"tokens": 1}, {"decay": 0.89}, {"ending": 0.7}):
        wrong = make(**fields)
        assert max(gap(wrong, text) for text in texts()) > 0.01, fields


def test_by_hand():
    """Three calls with other names: the fourth is penalised twice, at its first token.

    Planted: inside a line nothing is, nor is a line that only looks alike in tokens.
    """
    calls = [0, 4, 5, 1, 4, 5, 0, 4, 5]
    out = run(make(), np.zeros(VOCAB), calls)
    assert np.flatnonzero(out).tolist() == [0]
    assert out[0] == pytest.approx(2 * math.log(0.9))
    assert not run(make(), np.zeros(VOCAB), [*calls, 1]).any()
    assert not run(make(), np.zeros(VOCAB), [0, 4, 5, 1, 8, 5]).any()


def test_statements_raise_the_end():
    out = run(make(), np.zeros(VOCAB), [2, 0, 5, 2, 1, 5])  # if a, if b
    assert out[EOS] == pytest.approx(-math.log(0.8))
    assert run(make(statements=()), np.zeros(VOCAB), [2, 0, 5, 2, 1, 5])[EOS] == 0


def test_where_nothing_repeats_logits_stay_bit_for_bit():
    logits = np.random.default_rng(1).normal(size=VOCAB).astype(np.float32)
    out = run(make(), logits, [0, 1, 2, 3, 4, 5, 8])
    assert (out == logits).all()
    repeats = run(make(), logits, [0, 1, 0, 1])  # planted: something repeats
    assert (out != repeats).any()


def test_the_penalty_grows_with_the_repetitions():
    """Even beyond the tokens that are held; negative logits fall, too."""
    transform, logits = make(tokens=4), np.full(VOCAB, -3.0)
    values = [run(transform, logits, [0, 1] * n)[0] for n in range(1, 9)]
    assert values[0] == -3 and (np.diff(values) < 0).all()
    assert values[-1] == pytest.approx(-3 + 7 * math.log(0.9))
    official = [-3 * 0.9**n for n in range(8)]  # planted: it raises them
    assert (np.diff(official) > 0).all()


def test_factors_of_logits():
    """Both signs fall, and EOS rises; planted: the official code on negative ones."""
    for z in (2.0, -2.0):
        transform, logits = make(of="logit"), np.full(VOCAB, z)
        out = run(transform, logits, [2, 0, 5, 2, 1, 5])
        by = lambda factor, z=z: z * factor if z > 0 else z / factor
        assert out[2] == pytest.approx(by(0.9)) and out[2] < z
        assert out[EOS] == pytest.approx(by(1 / 0.8)) and out[EOS] > z
        others = np.delete(out, [2, EOS])
        assert (others == z).all()
    assert -2.0 * 0.9 > -2.0


def test_loops_of_a_model_end_sooner():
    """The toy's greedy texts loop; the more a repetition costs, the fewer there are."""
    new = 40

    def loops(method: Method) -> int:
        out = kit.generate(method, max_new_tokens=new)
        return sum(repeated(text, 8)[1] for text in out.tokens)

    strong = Method(transforms=(kit.spec("transforms/rpg", decay=0.01),))
    none = Method(transforms=(kit.spec("transforms/rpg", decay=1.0, ending=1.0),))
    assert loops(strong) < loops(none)
    assert kit.generate(none, max_new_tokens=new).tokens == kit.plain(Method(), 0.0)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"decay": 0.0}, "decay=0.0"),
        ({"ending": 1.5}, "ending=1.5"),
        ({"tokens": 0}, "tokens=0"),
        ({"lines": -1}, "lines=-1"),
        ({"of": "logits"}, "of='logits'"),
    ],
)
def test_refuses(fields, words):
    with pytest.raises(MethodError, match=words):
        make(**fields)
    assert Spec("transforms/rpg").required == []
