"""Forced text: what every prefix allows, its spelling, and the canonical grammar."""

import numpy as np
import pytest

from decoding.automata import byte_machine, compiled, forced_text
from decoding.automata.byte_machine import Config

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 3},
        "kind": {"const": "fixed thing"},
        "role": {"enum": ["admin", "user"]},
        "next": {"type": "array", "items": {"type": "null"}, "maxItems": 2},
    },
    "required": ["name", "kind", "role", "next"],
    "additionalProperties": False,
}
GRAMMARS = [
    {"json_schema": SCHEMA, "whitespace": "compact"},
    {"json_schema": SCHEMA},
    {"regex": "Hello, (dear|my) friend[s]?!"},
    {"gbnf": 'root ::= "ab" x "cd" | "e" x "fgh"\nx ::= "(" x ")" | "long text"?'},
]
BYTES = [bytes([i]) for i in range(256)]
WORDS = [b'":', b'{"', b"name", b"na", b"long", b" text", b"text", b'",', b',"', b":1"]


def walked(machine, seed):
    """Yield where a random text is, with its true stack, before each of its bytes."""
    rng = np.random.default_rng(seed)
    at = Config(machine.start)
    for _ in range(80):
        yield at
        after = [byte_machine.read(machine, at, byte) for byte in BYTES]
        live = [config for config in after if config.state != byte_machine.DEAD]
        if not live:
            return
        at = live[rng.integers(len(live))]


def follows(machine, at):
    """Return the bytes that may follow at `at`, of the whole stack."""
    return [b for b in BYTES if byte_machine.read(machine, at, b).state >= 0]


def broken(machine, at, text):
    """Return the first place at which `text` is not forced; None: all of it is."""
    for i in range(len(text)):
        one = text[i : i + 1]
        if byte_machine.is_final(machine, at) or follows(machine, at) != [one]:
            return i
        at = byte_machine.read(machine, at, one)
    return None


@pytest.mark.parametrize("source", GRAMMARS, ids=["compact", "json", "regex", "gbnf"])
def test_nothing_else_may_follow(source):
    """On random texts every byte of a forced text is the only one that may follow.

    Planted: a text that is one byte longer, or whose last byte is another one.
    """
    machine = compiled.machine(compiled.parse(source))
    texts, ends = forced_text.texts(machine)
    assert any(len(text) > 3 for text in texts)
    seen, faults = 0, 0
    for seed in range(6):
        for at in walked(machine, seed):
            text = texts[at.state]
            assert broken(machine, at, text) is None
            seen += bool(text)
            if text and ends[at.state] != forced_text.UNKNOWN:
                wrong = text[:-1] + bytes([text[-1] ^ 1])
                assert broken(machine, at, wrong) == len(text) - 1
                faults += broken(machine, at, text + b"?") == len(text)
    assert seen > 10 and faults > 0


def test_a_value_ends_the_text():
    """Who called is unknown, so a text ends where its value does."""
    machine = compiled.machine(compiled.parse(GRAMMARS[3]))
    texts, ends = forced_text.texts(machine)
    inside = [(t, e) for t, e in zip(texts, ends) if t and t in b"long text"]
    assert (b"long text"[1:], forced_text.UNKNOWN) in inside
    assert texts[machine.start] == b""


def compiler(tokens, spell=None):
    return compiled.Compiler([*tokens, b""], (len(tokens),), len(tokens) + 1, spell)


def spelled(lifted, tokens):
    """Return the distinct lists of forced tokens, as bytes."""
    at, values = lifted.jumps
    lists = {tuple(values[a : a + n, 0].tolist()) for a, n in at.tolist() if n}
    return {tuple(tokens[i] for i in row) for row in lists}


def test_spelling():
    """The tokenizer's own where it gives the bytes, else the longest tokens."""
    tokens = [*BYTES, *WORDS]
    grammar = compiled.parse({"regex": "[xy]name:(1|2)"})
    longest = compiler(tokens).lifted(grammar)
    # `:1` is a token, and 1 may follow: the colon is left out.
    assert (b"name",) in spelled(longest, tokens)
    by_bytes = lambda text: list(text.encode())
    assert tuple(b"n a m e".split()) in spelled(
        compiler(tokens, by_bytes).lifted(grammar), tokens
    )
    adds = lambda text: [32, *text.encode()]  # a space before it: not these bytes
    assert spelled(compiler(tokens, adds).lifted(grammar), tokens) == spelled(
        longest, tokens
    )
    other = compiled.parse({"regex": "[xy]name:(3|2)"})
    assert (b"name", b":") in spelled(compiler(tokens).lifted(other), tokens)


def test_canonical_leaves_one_spelling():
    """Each text of the grammar has one spelling of its forced part, and no other."""
    tokens = [*BYTES, *WORDS]
    plain = {"regex": "[xy]name:(3|2)"}
    of = compiler(tokens)
    free = of.lifted(compiled.parse(plain))
    only = of.lifted(compiled.parse({**plain, "canonical": True}))
    forced = np.flatnonzero(free.jumps.at[:, 1] > 0)
    assert len(forced) == 5
    first, length = only.own.at[forced].T
    assert (length == 1).all()
    expected = free.jumps.values[free.jumps.at[forced, 0], 0]
    assert (only.own.values[first, 0] == expected).all()
    # Planted: without it `n`, `na` and `name` are all allowed.
    assert free.own.at[forced].max(0)[1] == 3
