"""Regular expressions: the text is, in full, a string of the language.

Willard, Louf, "Efficient Guided Generation for Large Language Models", 2023, arXiv
2307.09702, §3; token classes and byte-level lifting are this project's own.

    q' = next[q, class[token]]        allowed(q) = {token : next[q, class[token]] != dead}

The regex becomes an automaton over characters, then over the bytes of their UTF-8 forms
(exactly: every code point, so that a token may hold half a character), then over tokens.
A token is allowed exactly when some sequence of tokens after it completes a string; the
end of sequence exactly when the string is complete. The law is the model's, restricted
token by token and renormalised: not the model's law conditioned on the language.

Syntax: Python's `re` with the flag ASCII (\\w, \\d and \\s are ASCII), matched as
`re.fullmatch` does; anchors, look-around, references and atomic groups are refused.
Deviations from the paper: states are pruned by what the vocabulary can spell.
Cost: two gathers over V a node. Tables are `next[Q, C]`, `class[V]` in int16 where they
fit: see `automaton` for sizes. Q and C are padded to powers of two, so that patterns of
like size share a compiled loop.
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import interegular
import jax.numpy as jnp
import numpy as np
from flax import struct
from interegular.fsm import FSM, anything_else
from interegular.patterns import InvalidSyntax, Unsupported
from interegular.utils.simple_parser import NoMatch
from jax import Array

from decoding import base, vocab
from decoding.catalogue import Card
from decoding.constraints import automaton
from models.errors import ConstraintError

CARD = Card(
    paper="2307.09702",
    guarantee=base.LAW,
    needs=("tokenizer", "eos", "vocab_size"),
)

_POINTS = 0x110000


@struct.dataclass
class Row:
    state: Array  # int32[]: state of the automaton; -1: dead, nothing is masked


@struct.dataclass
class Shared:
    next: Array  # int16 | int32[Q, C]; -1: forbidden
    classes: Array  # int16 | int32[V]


def _refuse(pattern: str, what: str, remedy: str) -> None:
    raise ConstraintError(f"regex {pattern!r} {what}: {remedy}")


def _check_syntax(pattern: str) -> None:
    """Refuse what interegular does not read as `re` does."""
    try:
        re.compile(pattern, re.ASCII)
    except re.error as error:
        raise ConstraintError(f"regex {pattern!r} is invalid: {error}") from error
    bare = re.sub(r"\\.", "__", pattern, flags=re.DOTALL)
    for text in re.findall(r"\[\^?\]", bare):
        _refuse(pattern, f"has a bracket right after {text[:-1]!r}", r"write it as \]")
    outside = re.sub(r"\[[^\]]*\]", lambda m: "_" * len(m[0]), bare)
    for text in re.findall(r"\(\?(?!:|P<|[is]+[:)])[^)]?.", outside, re.DOTALL):
        _refuse(
            pattern,
            f"uses {text!r}",
            "only (?:...), (?P<name>...) and the flags i and s are supported",
        )
    if re.search("[$^]", outside):
        _refuse(pattern, "has an anchor", "the whole text is matched; remove ^ and $")
    if "{}" in outside:
        _refuse(pattern, "has an empty repetition {}", r"write the braces as \{\}")
    for text in re.finditer(r"\[(?:\\.|[^\]\\])*\]", pattern, re.DOTALL):
        if len(re.findall(r"(?<!\\)(?:\\\\)*\\[WDS]", text[0])) > 1:
            _refuse(pattern, f"negates twice in {text[0]}", "use an alternation")
    if re.search(r"\(\?[is]*i", outside) and not pattern.isascii():
        _refuse(pattern, "ignores case beyond ASCII", "write both cases out")


def _characters(pattern: str) -> FSM:
    """The automaton over characters."""
    _check_syntax(pattern)
    try:
        return interegular.parse_pattern(pattern).to_fsm()
    except (InvalidSyntax, Unsupported, NoMatch) as error:
        raise ConstraintError(
            f"regex {pattern!r} uses syntax that constraints do not support "
            f"({error or 'unknown'}): anchors, look-around, references and Unicode "
            "classes have no automaton here"
        ) from error


class _Form(NamedTuple):
    """The UTF-8 forms of one length, as a trie whose equal subtrees are shared.

    `tables[l]` int[nodes, 64] lists what follows a node with l + 1 continuation bytes to
    come: keys of characters for l = 0, else nodes of `tables[l - 1]`. Node 0 is empty.
    `holds[l]` bool[nodes, keys] says which keys are below a node.
    """

    lead: int  # the least lead byte
    roots: np.ndarray  # int[leads]: a node of the last table
    tables: list[np.ndarray]
    holds: list[np.ndarray]


def _forms(key: np.ndarray) -> list[_Form]:
    """`key` int32[0x110000] names the class of each code point; -1: not a character."""
    forms = []
    padded = np.append(key, np.full(5 * 2**18 - len(key), -1, key.dtype))
    spans = ((0xC0, 0x80, 0x800), (0xE0, 0x800, 0x10000), (0xF0, 0x10000, 5 * 2**18))
    for length, (lead, first, last) in enumerate(spans, 1):
        ids = padded[:last].copy()
        ids[:first] = -1  # a code point has one form: a longer one is not UTF-8
        tables: list[np.ndarray] = []
        holds: list[np.ndarray] = []
        below = np.eye(key.max() + 2, dtype=bool)[:, :-1]  # its last row, -1: no key
        for level in range(length):
            # The empty node sorts first, because the filler is the least entry.
            empty = np.full((1, 64), 0 if level else -1, ids.dtype)
            rows = np.concatenate([empty, ids.reshape(-1, 64)])
            table, inverse = np.unique(rows, axis=0, return_inverse=True)
            ids = inverse.reshape(-1)[1:]
            below = below[table].any(1)
            tables.append(table)
            holds.append(below)
        forms.append(_Form(lead, ids, tables, holds))
    return forms


def _byte_automaton(fsm: FSM) -> automaton.ByteDFA:
    """The automaton of the UTF-8 forms of the strings of `fsm`, minimal."""
    symbols = dict(fsm.alphabet.items())
    key = np.full(_POINTS, symbols.pop(anything_else, -1), np.int32)
    for symbol, transition in symbols.items():
        key[ord(symbol)] = transition
    key[0xD800:0xE000] = -1  # surrogates have no UTF-8 form
    forms = _forms(key)
    # A byte state is a character state and a node of a form: (state, form, level, node).
    start = (fsm.initial, 0, -1, 0)
    number, queue, rows = {start: 0}, [start], []

    def visit(state: tuple) -> int:
        if state not in number:
            number[state] = len(queue)
            queue.append(state)
        return number[state]

    for char, form, level, node in queue:  # grows while it is read
        moves = fsm.map.get(char, {})
        target = np.full(key.max() + 2, automaton.DEAD, np.int32)
        for transition, reached in moves.items():
            target[transition] = visit((reached, 0, -1, 0))
        row = np.full(256, automaton.DEAD, np.int32)
        if level == 0:
            row[0x80:0xC0] = target[forms[form].tables[0][node]]
        elif level > 0:
            below = forms[form].tables[level][node]
            row[0x80:0xC0] = _enter(forms, char, form, level - 1, below, moves, visit)
        else:
            row[:0x80] = target[key[:0x80]]
            for i, kind in enumerate(forms):
                to = _enter(forms, char, i, i, kind.roots, moves, visit)
                row[kind.lead : kind.lead + len(to)] = to
        rows.append(row)
    accept = np.array([s[0] in fsm.finals and s[2] < 0 for s in queue])
    return automaton.minimise(automaton.ByteDFA(np.stack(rows), accept, 0))


def _enter(forms, char, form, level, nodes, moves, visit) -> np.ndarray:
    """The byte states of `nodes`; DEAD where no character below one has a move."""
    alive = forms[form].holds[level][:, list(moves)].any(1)
    to = np.full(len(alive), automaton.DEAD, np.int32)
    for node in np.unique(nodes):
        if alive[node]:
            to[node] = visit((char, form, level, int(node)))
    return to[nodes]


def compile_tables(
    pattern: str, tokens: Sequence[bytes], eos: Sequence[int], vocab_size: int
) -> automaton.TokenDFA:
    """The automaton of `pattern` over tokens; accepting states allow `eos`.

    `tokens[i]` are the bytes of token i. The last state is `done`: after the end of
    sequence nothing but another one is allowed. Raises ConstraintError when no sequence
    of tokens spells a string of the language, or when there is no way to end one.
    """
    if not eos or not all(0 <= end < vocab_size for end in eos):
        raise ConstraintError(
            f"regex {pattern!r} needs an end-of-sequence token within the vocabulary of "
            f"{vocab_size} to end a complete string, not {tuple(eos)}: pass eos"
        )
    if len(tokens) > vocab_size:
        raise ConstraintError(
            f"the tokenizer has {len(tokens)} tokens and the model {vocab_size}: use the "
            "tokenizer of this model"
        )
    spelled = list(tokens)
    for end in eos:
        if end < len(spelled):
            spelled[end] = b""  # it ends the text, whatever its bytes
    dfa = _byte_automaton(_characters(pattern))
    if dfa.start == automaton.DEAD:
        _refuse(pattern, "matches no text", "change the pattern")
    lifted = automaton.prune(automaton.lift(dfa, spelled, vocab_size))
    if lifted.start == automaton.DEAD:
        _refuse(
            pattern,
            "matches no sequence of this tokenizer's tokens",
            "change the pattern, or use a tokenizer that has every byte",
        )
    states, width = lifted.next.shape
    table = np.full((states + 1, width + 1), automaton.DEAD, np.int32)
    table[:states, :width] = lifted.next
    table[np.append(lifted.accept, True), width] = states
    classes = lifted.classes.copy()
    classes[list(eos)] = width
    return automaton.TokenDFA(
        table, classes, np.append(lifted.accept, True), lifted.start
    )


def transform(
    pattern: str, tokenizer: Any, eos: tuple[int, ...], vocab_size: int
) -> base.LogitsTransform:
    """Restrict the text to strings that match `pattern` in full.

    Where earlier transforms have forbidden every token that the pattern allows, the
    pattern wins: the allowed ones become equally likely. In a dead state, which only an
    unreachable tree node has, the logits come back as they are.
    """
    found = compile_tables(pattern, tokenizer.token_bytes(), eos, vocab_size)
    grown = [(0, (1 << (size - 1).bit_length()) - size) for size in found.next.shape]
    table = automaton.compact(np.pad(found.next, grown, constant_values=automaton.DEAD))
    classes = automaton.compact(found.classes)

    def init(tokens: Array, length: Array) -> base.State:
        shared = Shared(jnp.asarray(table), jnp.asarray(classes))
        return base.State(Row(jnp.int32(found.start)), shared)

    def apply(state: base.State, logits: Array, aux: dict[str, Array]) -> Array:
        at, tables = state.row.state, state.shared
        allowed = (tables.next[jnp.maximum(at, 0)] >= 0)[tables.classes]
        kept = jnp.where(allowed, logits, -jnp.inf)
        forced = jnp.where(allowed, 0.0, -jnp.inf)
        masked = jnp.where(vocab.maximum(kept) > -jnp.inf, kept, forced)
        return jnp.where(at >= 0, masked, logits)

    def advance(state: base.State, token: Array, logits: Array) -> base.State:
        at, tables = state.row.state, state.shared
        after = tables.next[jnp.maximum(at, 0), tables.classes[token]]
        moved = jnp.where(at >= 0, after, automaton.DEAD).astype(jnp.int32)
        return base.State(Row(moved), tables)

    return base.LogitsTransform(init, apply, advance)
