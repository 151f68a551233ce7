"""Tokens that spell little, and which of them may follow a text, by Python's `re`."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np

from decoding.automata import arena, compiled, machine

# No token spells "c" alone, and é only comes in halves or with a letter.
TOKENS = [b"", b"a", b"b", b"ab", b"ba", b"bc", b"aa", b"\xc3", b"\xa9", b"\xa9a", b"1"]
TOKENS += [b"12", b"-", b"", b"bca", b"\xc3\xa9", b"1-"]
EOS, VOCAB = (0,), 20  # ids 17 to 19 pad the embedding

allowed = jax.jit(machine.allowed)
advance = jax.jit(machine.advance)
every = jax.jit(jax.vmap(machine.advance, (None, None, 0)))


def matches(pattern: str, data: bytes) -> bool:
    try:
        return re.fullmatch(pattern, data.decode(), re.ASCII) is not None
    except UnicodeDecodeError:
        return False


@functools.cache
def spelled(longest: int) -> tuple[bytes, ...]:
    """Return every string of up to `longest` bytes that tokens spell."""
    strings, todo = {b""}, [b""]
    while todo:
        head = todo.pop()
        for longer in (head + token for token in TOKENS):
            if len(longer) <= longest and longer not in strings:
                strings.add(longer)
                todo.append(longer)
    return tuple(strings)


def live(pattern: str, longest: int) -> set[bytes]:
    """Return the spelled strings that tokens can go on to a match of `longest` bytes at
    most."""
    alive = {text for text in spelled(longest) if matches(pattern, text)}
    among, todo = set(spelled(longest)), list(alive)
    while todo:
        text = todo.pop()
        for token in TOKENS:
            head = text[: len(text) - len(token)]
            if text.endswith(token) and head in among and head not in alive:
                alive.add(head)
                todo.append(head)
    return alive


def placed(pattern: str, tokens=TOKENS, size=VOCAB) -> tuple[machine.Tables, int]:
    """Return the tables of a pattern, compiled anew, and where its texts begin."""
    compiler = compiled.Compiler(tokens, EOS, size)
    held = arena.Arena(compiler.vocabulary, None)
    start = held.add(compiler._compile(compiled.parse({"regex": pattern})))
    return jax.tree.map(jnp.asarray, held.tables()), start


def disagreements(pattern: str, longest: int, more: int = 0) -> tuple[int, int]:
    """Compare masks and steps with `re`, from every text that tables allow.

    Args:
        pattern: compiled anew.
        longest: bytes of the texts from which tokens are tried.
        more: further bytes that complete any live text; 0: no match is longer.

    Returns:
        The pairs of a text and a token, and those on which mask or step is wrong.
    """
    tables, start = placed(pattern)
    alive = live(pattern, longest + more)
    first = jax.tree.map(np.asarray, machine.init(start, 0, 1, False))
    seen, todo, pairs, wrong = {b""}, [(b"", first)], 0, 0
    while todo:
        text, row = todo.pop()
        mask = np.asarray(allowed(tables, row))
        after = jax.tree.map(np.asarray, every(tables, row, np.arange(VOCAB)))
        pairs += VOCAB
        for token, data in enumerate(TOKENS + [b""] * (VOCAB - len(TOKENS))):
            longer = text + data
            if token in EOS:
                wrong += mask[token] != matches(pattern, text)
                continue
            good = bool(data) and longer in alive
            is_dead = after.state[token] == machine.DEAD
            wrong += mask[token] != good or is_dead == good
            if mask[token] and len(longer) <= longest and longer not in seen:
                seen.add(longer)
                todo.append((longer, machine.Row(*(leaf[token] for leaf in after))))
    return pairs, wrong
