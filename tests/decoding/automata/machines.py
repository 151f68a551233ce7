"""Small machines, vocabularies, and the run of bytes that masks are compared with."""

import random

import jax
import jax.numpy as jnp
import numpy as np

from decoding.automata import arena, byte_machine, lift, machine, rests, token_trie
from decoding.automata.byte_machine import (
    CALL,
    DEAD,
    POP,
    QUOTE,
    STRING,
    ByteMachine,
    Config,
)
from decoding.automata.pushdown import Builder

EOS = (0,)
DIGITS = b"0123456789"
BEGINS = b'"[{t0123456789'
# All bytes, and tokens that end, begin and nest values inside them.
TOKENS = [b"", *(bytes([i]) for i in range(256))]
_LONG = """ {" ": "," "} "}, ]] ],[ [[ }} 12 1, "a" "ab":[ "] "]} \\" ab abc" é true
    ue, 1]," {"a":{"b": ]}]} ":" "", 1}] """
TOKENS += [token.encode() for token in _LONG.split()]
TOKENS += [b'\xa9"', b"", b"", b""]
VOCAB = len(TOKENS) + 5  # the last ids pad the embedding


def json_values(span: tuple[int, int] = byte_machine.ANY_LENGTH) -> ByteMachine:
    """Return a machine of JSON without white space; `span` bounds its string values."""
    built = Builder()
    over, value = built.state(ends=0), built.state()
    built.read(value, b'"', CALL + QUOTE)
    built.back[value], built.span[value] = {0: over}, span
    last = built.text(value, b"true")
    built.ends[last] = built.final[last] = 0
    number = built.state(final=0)
    built.read(value, DIGITS, number)
    built.read(number, DIGITS, number)
    built.otherwise(number, POP + 0)
    array, item, after_item = (built.state() for _ in range(3))
    built.read(value, b"[", array)
    built.read(array, b"]", over)
    for state in (array, item):
        built.read(state, BEGINS, CALL + value)
        built.back[state] = {0: after_item}
    built.read(after_item, b",", item)
    built.read(after_item, b"]", over)
    object_, key, colon, member, after_member = (built.state() for _ in range(5))
    built.read(value, b"{", object_)
    built.read(object_, b"}", over)
    for state in (object_, key):
        built.read(state, b'"', CALL + QUOTE)
        built.back[state] = {0: colon}
    built.read(colon, b":", member)
    built.read(member, BEGINS, CALL + value)
    built.back[member] = {0: after_member}
    built.read(after_member, b",", key)
    built.read(after_member, b"}", over)
    return built.machine(value)


def even_and_odd() -> ByteMachine:
    """Return a machine of (x) or (xx) and so on, then e or o by the x's parity.

    `((x))` is odd, and is followed by o; the labels 0 and 1 are even and odd.
    """
    built = Builder()
    value, even, odd = (built.state() for _ in range(3))
    ends = [built.state(ends=label) for label in (0, 1)]
    built.read(value, b"(", even)
    built.read(even, b"x", odd)
    built.read(odd, b"x", even)
    built.read(even, b"(", CALL + value)
    close = [built.state() for _ in range(2)]
    built.back[even] = dict(enumerate(close))
    for label in (0, 1):
        built.read(close[label], b")", ends[label])
    built.read(odd, b")", ends[1])
    start, final = built.state(), built.state(ends=0)
    built.read(start, b"(", CALL + value)
    after = [built.state() for _ in range(2)]
    built.back[start] = dict(enumerate(after))
    built.read(after[0], b"e", final)
    built.read(after[1], b"o", final)
    return built.machine(start)


VOCABULARY = arena.Vocabulary(TOKENS, VOCAB, EOS)
TRIE = token_trie.trie(TOKENS)


def lifted(built: ByteMachine) -> tuple[arena.Strings, lift.Lifted]:
    """Lift a machine, and STRING with its rests."""
    _, follow = rests.following(built)
    every = np.flatnonzero(built.ends < 0).astype(np.int32)
    walk = token_trie.Walk(built, TRIE, every, follow)
    endings = rests.collect(built, TRIE, walk)
    parts = []
    for begin in (every[every < STRING], rests.origins(built)):
        walk = token_trie.Walk(built, TRIE, begin, follow)
        parts.append(lift.lift(built, TRIE, VOCAB, endings, begin, walk))
        if len(parts) == 1:
            width = lift.widths(TRIE, VOCAB, begin, walk)
    return arena.Strings(parts[0], width), parts[1]


allowed = jax.jit(machine.allowed)
advance = jax.jit(machine.advance)


def wanted(built: ByteMachine, at: Config) -> np.ndarray:
    """Return which tokens may follow, by running the bytes of each, bool[V]."""
    mask = np.zeros(VOCAB, bool)
    for i, token in enumerate(TOKENS):
        mask[i] = bool(token) and byte_machine.read(built, at, token).state != DEAD
    mask[list(EOS)] = byte_machine.is_final(built, at)
    if not mask.any():
        mask[list(EOS)] = True
    return mask


def differing(
    tables: machine.Tables,
    built: ByteMachine,
    start: int,
    seed: int,
    steps: int = 30,
    depth: int = 32,
) -> int:
    """Count the tokens on which masks and bytes differ, along a random text."""
    choose, wrong = random.Random(seed), 0
    row = machine.init(jnp.int32(start), 0, depth, False)
    at = Config(built.start)
    for _ in range(steps):
        mask = np.asarray(allowed(tables, row))
        wrong += int((mask != wanted(built, at)).sum())
        tokens = [i for i in np.flatnonzero(mask) if i not in EOS]
        if wrong or not tokens:
            break
        # Long tokens, of which there are few, end and open most values.
        long = [i for i in tokens if len(TOKENS[i]) > 1]
        token = choose.choice(long if long and choose.random() < 0.6 else tokens)
        at = byte_machine.read(built, at, TOKENS[token])
        row = advance(tables, row, jnp.int32(token))
    return wrong
