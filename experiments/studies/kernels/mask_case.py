"""A grammar whose masks are timed and counted: one JSON schema, over any vocabulary.

A chip's vocabulary of 128,256 tokens is made by a rule, since a mask's cost depends on
lengths alone: of the vocabulary, and of the lists of tokens that end a string.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

import models
from decoding.automata import arena, compiled, machine
from experiments.studies.constraint_costs import walked
from experiments.studies.constraint_peers import DEPTH, MOST_TOKENS
from models.errors import ConfigError

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 64},
        "age": {"type": "integer", "minimum": 0},
        "score": {"type": "number"},
        "role": {"enum": ["admin", "editor", "viewer"]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
            "required": ["street", "city"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "age", "role", "tags"],
    "additionalProperties": False,
}
TEXT = json.dumps(
    {
        "name": "Grace Hopper",
        "age": 85,
        "score": 9.75,
        "role": "admin",
        "tags": ["navy", "compilers", "nanoseconds", "debugging"],
        "address": {"street": "1600 Wilson Boulevard", "city": "Arlington"},
    }
)
MARKS = (b'{"', b'": ', b'": "', b'":', b'", "', b'",', b'"}', b'"]', b'["', b"},")
SPACES = (b"", b" ", b"  ", b"\n", b"\n  ", b"\n    ", b"\n\t", b"\t")
VALUES = (b"", b'"', b"{", b"[", b"1", b"t", b"f", b"n")
CLOSERS = (b"}", b"]", b"}}", b"]}", b"}]", b"]]")
# What JSON goes on with behind a string: as many as trained vocabularies have.
RESTS = [
    b"",
    *(
        mark + space + value
        for mark in (b",", b":")
        for space in SPACES
        for value in VALUES
    ),
    *(closer + space for closer in CLOSERS for space in SPACES),
    *(closer + b"," + space for closer in CLOSERS for space in SPACES),
]
LETTERS, WORD, STRIDE = 26, 5, 7919  # the stride has no factor of 26: no word twice


class Case(NamedTuple):
    """A grammar over a vocabulary."""

    tables: machine.Tables
    rows: machine.Row  # before each token of TEXT, leaves [T, ...]

    @property
    def size(self) -> int:
        """V."""
        return self.tables.width.shape[1]

    @property
    def ends(self) -> int:
        """The most tokens that end the value of one state."""
        return int(np.asarray(self.tables.returns.at)[:, 1].max())

    def batches(self, nodes: int, count: int) -> list[machine.Row]:
        """Return `count` batches of rows, leaves [nodes, ...], from all over TEXT."""
        length = len(self.rows.state)
        at = np.linspace(0, length - 1, nodes * count).round().astype(int)
        at = np.random.default_rng(0).permutation(at).reshape(count, nodes)
        return [jax.tree.map(lambda leaf, i=i: leaf[i], self.rows) for i in at]


def masks(tables: machine.Tables, rows: machine.Row) -> jax.Array:
    """Make the masks of `rows`, leaves [N, ...], as decoding does; bool[N, V]."""
    return jax.vmap(machine.allowed, (None, 0))(tables, rows)


def case(size: int, endings: int, model: str = "tiny") -> Case:
    """Compile the schema over a vocabulary.

    Args:
        size: V; 0: the vocabulary of `model`.
        endings: as of `vocabulary`.
        model: whose tokens are taken.
    """
    if size:
        tokens, eos = vocabulary(size, endings), (size - 1,)
    else:
        lm: Any = models.load(model)
        tokens, eos = list(lm.tokenizer.token_bytes()), tuple(lm.model.config.eos)
    compiler = compiled.Compiler(tokens, eos, len(tokens))
    held = arena.Arena(compiler.vocabulary, compiler.strings)
    first = held.add(
        compiler.lifted(compiled.Grammar("json_schema", json.dumps(SCHEMA)))
    )
    tables = jax.tree.map(jax.numpy.asarray, held.tables())
    row = machine.init(first, MOST_TOKENS, DEPTH, False)
    ids = jax.numpy.array(spelled(compiler.vocabulary.tokens, TEXT.encode()))
    return Case(tables, walked(tables, row, ids))


def vocabulary(size: int, endings: int) -> list[bytes]:
    """Make tokens by a rule.

    In order: the 256 bytes; two and three digits; white space; JSON's marks; `endings`
    words that end a string, with what JSON goes on with; other words, three of four
    behind a space; and the end of sequence. Word i has the five letters of
    i * 7919 mod 26**5, in base 26.

    Args:
        size: V.
        endings: tokens of a word, a quotation mark and a rest.

    Raises:
        ConfigError: there are fewer tokens than these.
    """
    tokens = [bytes([byte]) for byte in range(256)]
    tokens += [b"%02d" % i for i in range(100)] + [b"%03d" % i for i in range(1000)]
    tokens += [b" " * i for i in range(2, 17)] + [
        b"\n" + b" " * i for i in range(1, 17)
    ]
    tokens += MARKS
    words = _words()
    tokens += [next(words) + b'"' + RESTS[i % len(RESTS)] for i in range(endings)]
    if len(tokens) >= size:
        raise ConfigError(
            f"{size} tokens with {endings} endings: use at least {len(tokens) + 1}"
        )
    for i in range(size - 1 - len(tokens)):
        tokens.append((b" " if i % 4 else b"") + next(words))
    return [*tokens, b""]


def _words() -> Iterator[bytes]:
    for i in range(LETTERS**WORD):
        code = i * STRIDE % LETTERS**WORD
        yield bytes(97 + code // LETTERS**place % LETTERS for place in range(WORD))


def spelled(tokens: Sequence[bytes], text: bytes) -> list[int]:
    """Spell a text, at each place by its longest token."""
    ids = {token: i for i, token in enumerate(tokens) if token}
    longest = max(map(len, ids))
    spelling, at = [], 0
    while at < len(text):
        sizes = range(min(longest, len(text) - at), 0, -1)
        size = next(size for size in sizes if text[at : at + size] in ids)
        spelling.append(ids[text[at : at + size]])
        at += size
    return spelling
