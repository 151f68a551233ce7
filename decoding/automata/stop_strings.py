"""Stop strings: one automaton that reads the bytes of a text, token by token.

Baseline; the automaton is that of Aho, Corasick, "Efficient string matching: an aid to
bibliographic search", 1975. A stop string may begin and end inside a token and span any
number of tokens. So comparing token ids or token texts would miss it.

    state' = next[state, classes[token]]        absorbing states: matched

The loop stops *when* the automaton matches; on the host, `cut` finds where to cut the
text.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from decoding.automata import token_dfa
from models.errors import PromptError

LEAST = 32  # states and classes of a table, at least


class Stopper(NamedTuple):
    """The automaton on the device; a pytree."""

    next: Array  # int16 | int32[Q, C]
    classes: Array  # int16 | int32[V]
    accept: Array  # bool[Q]: true for the absorbing states `matched`


def _encode(strings: Sequence[str]) -> list[bytes]:
    if "" in strings:
        raise PromptError(
            "a stop string is empty and would stop every text at once: remove it"
        )
    return [string.encode("utf-8") for string in strings]


def _aho_corasick(words: list[bytes]) -> token_dfa.ByteDFA:
    """Build the automaton of `words`.

    State 0 has matched no byte of any word. The last state is absorbing: matched.
    """
    children: list[dict[int, int]] = [{}]
    whole = [False]
    for word in words:
        node = 0
        for byte in word:
            if byte not in children[node]:
                children[node][byte] = len(children)
                children.append({})
                whole.append(False)
            node = children[node][byte]
        whole[node] = True
    step = np.zeros((len(children) + 1, 256), np.int32)
    accept = np.array(whole + [True])
    queue = deque([(0, 0)])  # nodes in order of depth, with their longest proper suffix
    while queue:
        node, suffix = queue.popleft()
        accept[node] |= accept[suffix]
        if node:
            step[node] = step[suffix]
        for byte, child in children[node].items():
            queue.append((child, step[suffix, byte] if node else 0))
            step[node, byte] = child
    # A text that has matched stays matched.
    step[accept[step]] = len(children)
    step[-1] = len(children)
    return token_dfa.ByteDFA(step, accept, 0)


def _joined(lists: Sequence[Sequence[str]]) -> tuple[token_dfa.ByteDFA, list[int]]:
    """Put the automata of several lists side by side; return their start states."""
    steps, accepts, starts, size = [], [], [], 0
    for strings in lists:
        words = _encode(strings)
        dfa = token_dfa.ByteDFA(np.zeros((1, 256), np.int32), np.zeros(1, bool), 0)
        if words:
            dfa = token_dfa.minimise(_aho_corasick(words))
        steps.append(dfa.next + size)
        accepts.append(dfa.accept)
        starts.append(dfa.start + size)
        size += len(dfa.accept)
    whole = token_dfa.ByteDFA(np.concatenate(steps), np.concatenate(accepts), 0)
    return whole, starts


def stopper(
    lists: Sequence[Sequence[str]], tokenizer: Any, vocab_size: int
) -> tuple[Stopper, list[int]]:
    """Build one automaton of several lists of strings over `vocab_size` tokens.

    A row that begins in the state of a list stops at the strings of that list. Equal
    lists share their states; an empty one stops nowhere. `tokenizer.token_bytes()`
    gives the bytes of every id. Tokens without bytes keep the state. Q and C are padded
    to powers of two, so that most strings share a compiled loop.

    Returns:
        The automaton, and the state in which each list begins.

    Raises:
        PromptError: a string is empty.
    """
    distinct = list(dict.fromkeys(tuple(strings) for strings in lists))
    dfa, starts = _joined(distinct)
    tokens = tokenizer.token_bytes()[:vocab_size]
    lifted = token_dfa.lift(dfa, tokens, vocab_size, inert=True)
    room = [max(LEAST, 1 << (n - 1).bit_length()) - n for n in lifted.next.shape]
    table = np.pad(lifted.next, [(0, more) for more in room])
    built = Stopper(
        jnp.asarray(token_dfa.compact(table)),
        jnp.asarray(token_dfa.compact(lifted.classes)),
        jnp.asarray(np.pad(lifted.accept, (0, room[0]))),
    )
    return built, [starts[distinct.index(tuple(strings))] for strings in lists]


def advance(stopper: Stopper, state: Array, token: Array) -> Array:
    """Return the state int32[...] after `token` int32[...], from `state` int32[...]."""
    return stopper.next[state, stopper.classes[token]].astype(jnp.int32)


def matched(stopper: Stopper, state: Array) -> Array:
    """Return whether a stop string has occurred, bool[...]."""
    return stopper.accept[state]


def cut(strings: Sequence[str], data: bytes) -> int | None:
    """Find where to cut the decoded bytes `data`; None if they hold no stop string.

    The cut is where the match begins that *ends* first, as in the automaton; of several
    that end there, the longest. So it depends on the text alone, not on its tokens.
    """
    matches = [(data.find(word), len(word)) for word in _encode(strings)]
    ends = [(at + size, at) for at, size in matches if at >= 0]
    return min(ends)[1] if ends else None
