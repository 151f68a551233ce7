"""Regular expressions: the whole text must match the pattern.

Willard, Louf, "Efficient Guided Generation for Large Language Models", 2023, arXiv
2307.09702, §3; token classes and byte-level lifting are this project's own.

    q' = next[q, class[token]]
    allowed(q) = {token : next[q, class[token]] != dead}

The regex becomes an automaton over characters, then over the bytes of their UTF-8 forms
(exactly, so that a token may hold half a character), then over tokens.
A token is allowed if and only if some sequence of tokens after it completes a string;
the end of sequence, if and only if the string is complete. The law is the model's,
restricted token by token and renormalised. It is not the model's law conditioned on the
language.

Syntax: Python's `re` with the flag ASCII (\\w, \\d and \\s are ASCII), matched as
`re.fullmatch` does; inner anchors, look-around, references, atomic groups and
possessive repeats are refused.
Deviations from the paper: states from which the vocabulary spells no ending are pruned.
Cost: two gathers over V a node. Tables are `next[Q, C]`, `class[V]` in int16 where they
fit: see `automata/token_dfa.py` for sizes. Q and C are padded to powers of two, so that
patterns of similar size share a compiled loop.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array

from decoding import base, vocab
from decoding.automata import regex_syntax, token_dfa, utf8
from decoding.catalogue import Card
from models.errors import ConstraintError

CARD = Card(
    paper="Efficient guided generation, arXiv 2307.09702",
    guarantee=base.LAW,
    family="grammar",
    data=("pattern",),
    needs=("tokenizer", "eos", "vocab_size"),
    examples={"pattern": "(a|b|c[a-e]|d+|e|f)*"},
    sources=("willard2023efficient",),
)


@struct.dataclass
class Row:
    state: Array  # int32[]: state of the automaton; -1: dead, no token is masked


@struct.dataclass
class Shared:
    next: Array  # int16 | int32[Q, C]; -1: forbidden
    classes: Array  # int16 | int32[V]


def compile_tables(
    pattern: str, tokens: Sequence[bytes], eos: Sequence[int], vocab_size: int
) -> token_dfa.TokenDFA:
    """Build the automaton of `pattern` over tokens.

    Accepting states allow `eos`. The last state is `done`: after the end of sequence
    only another one is allowed.

    Args:
        pattern: a regex of Python's `re`.
        tokens: the bytes of each token.
        eos: ids of the end-of-sequence tokens.
        vocab_size: V.

    Raises:
        ConstraintError: no sequence of tokens spells a string of the language, or
            `eos` has no token to end one.
    """
    if not eos or not all(0 <= end < vocab_size for end in eos):
        raise ConstraintError(
            f"regex {pattern!r} needs an end-of-sequence token to end a string, "
            f"within the vocabulary of {vocab_size}; pass such ids as eos, not "
            f"{tuple(eos)}"
        )
    if len(tokens) > vocab_size:
        raise ConstraintError(
            f"the tokenizer has {len(tokens)} tokens and the model {vocab_size}: use "
            "the tokenizer of this model"
        )
    spelled = list(tokens)
    for end in eos:
        if end < len(spelled):
            spelled[end] = b""  # an EOS ends the text, whatever its bytes
    dfa = utf8.byte_automaton(regex_syntax.automaton(pattern))
    if dfa.start == token_dfa.DEAD:
        raise regex_syntax.refuse(pattern, "matches no text", "change the pattern")
    lifted = token_dfa.prune(token_dfa.lift(dfa, spelled, vocab_size))
    if lifted.start == token_dfa.DEAD:
        raise regex_syntax.refuse(
            pattern,
            "matches no sequence of this tokenizer's tokens",
            "change the pattern, or use a tokenizer that has every byte",
        )
    states, width = lifted.next.shape
    table = np.full((states + 1, width + 1), token_dfa.DEAD, np.int32)
    table[:states, :width] = lifted.next
    table[np.append(lifted.accept, True), width] = states
    classes = lifted.classes.copy()
    classes[list(eos)] = width
    return token_dfa.TokenDFA(
        table, classes, np.append(lifted.accept, True), lifted.start
    )


def transform(
    pattern: str, tokenizer: Any, eos: tuple[int, ...], vocab_size: int
) -> base.LogitsTransform:
    """Restrict the text to strings that match `pattern` in full.

    If earlier transforms have forbidden every token that the pattern allows, the
    pattern wins: its tokens become equally likely. In a dead state, which only an
    unreachable tree node has, the logits are returned unchanged.

    Args:
        pattern: a regex of Python's `re`.
        tokenizer: `tokenizer.token_bytes()` gives the bytes of every id.
        eos: ids of the end-of-sequence tokens.
        vocab_size: V.
    """
    automaton = compile_tables(pattern, tokenizer.token_bytes(), eos, vocab_size)
    padding = [
        (0, (1 << (size - 1).bit_length()) - size) for size in automaton.next.shape
    ]
    table = token_dfa.compact(
        np.pad(automaton.next, padding, constant_values=token_dfa.DEAD)
    )
    classes = token_dfa.compact(automaton.classes)

    def init(tokens: Array, length: Array) -> base.State:
        shared = Shared(jnp.asarray(table), jnp.asarray(classes))
        return base.State(Row(jnp.int32(automaton.start)), shared)

    def apply(state: base.State, logits: Array, aux: dict[str, Array]) -> Array:
        at, tables = state.row.state, state.shared
        allowed = (tables.next[jnp.maximum(at, 0)] >= 0)[tables.classes]
        return jnp.where(at >= 0, vocab.restricted(logits, allowed), logits)

    def advance(
        state: base.State, token: Array, logits: Array, aux: dict[str, Array]
    ) -> base.State:
        at, tables = state.row.state, state.shared
        after = tables.next[jnp.maximum(at, 0), tables.classes[token]]
        moved = jnp.where(at >= 0, after, token_dfa.DEAD).astype(jnp.int32)
        return base.State(Row(moved), tables)

    def free(state: base.State, logits: Array, aux: dict[str, Array]) -> Array:
        return logits

    return base.LogitsTransform(init, apply, advance, free=free)
