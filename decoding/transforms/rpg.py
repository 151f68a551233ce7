"""RPG: penalise the token that would repeat a block of tokens, or of lines by types.

Dong, Liu, Jiang, Gu, Jin, Li, *Rethinking Repetition Problems of LLMs in Code
Generation*, 2025, arXiv 2505.10402; official code github.com/LYC127/RPG.

    tokens: the smallest r whose last r tokens equal the r before, n times in a row
    lines:  at a line's beginning, the smallest b whose last b lines have the types of
            the b before, n times in a row
    z'_v   = z_v + n log 0.9     v the first token of the last such block
    z'_EOS = z_EOS - n log 0.8   if v begins a statement

0.9 -> decay, 0.8 -> ending. The prompt counts. Types are those of
`automata/line_types.py`: keywords and signs as they stand, and NAME, NUMBER, STRING,
COMMENT, LIST. Where nothing repeats, no logit changes.

Deviations: the official code multiplies raw logits by 0.9^n and divides EOS's by 0.8^n,
which acts against its purpose where a logit is negative. Here the factor is one of the
probability before renormalisation; with `of="logit"` positive logits are multiplied as
there, and negative ones divided. That is the stronger form: a logit of 20 loses 2 at
once. The official code counts lines' repetitions once, as it makes its
counter anew for every token; here n counts them. Its blocks of lines must divide the
number of lines, and blocks of tokens have any length; here lines are free, and both
lengths have bounds. Its types are those of whole tokens, with indentation; ours are of
bytes, without, and blank lines are no lines. One v under both rules is penalised once,
by the greater n.
Cost: O(tokens + lines) a token, no pass over V but for two scattered values; 8 bytes a
token, 12 a line and row, and as much for each tree node; tables of 2.5 MB at V = 4,096.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array, lax

from decoding import base
from decoding.automata import line_types, token_dfa
from decoding.catalogue import Card
from models.errors import MethodError

CARD = Card(
    paper="RPG, arXiv 2505.10402",
    guarantee=base.LAW,
    family="penalty",
    data=("decay", "ending", "statements"),
    needs=("tokenizer", "eos", "vocab_size"),
    examples={"tokens": 8, "lines": 4, "statements": ("b", "d")},
    sources=("dong2025rethinking",),
)

STATEMENTS = tuple(
    "assert if elif else print def # try while import from for class ''' \"\"\"".split()
) + ("\n",)
PROBABILITY, LOGIT = "probability", "logit"


@struct.dataclass
class Repeats:
    """The newest things first, and how many in a row equal those a distance before.

    `runs[r - 1]` counts the newest things x_t, x_t-1, ... that equal x_t-r, x_t-r-1 ...
    So the last r repeat `runs[r - 1] // r` times.
    """

    newest: Array  # int32[R] or uint32[R]
    runs: Array  # int32[R]
    count: Array  # int32[]: things so far, at most R of which are held


@struct.dataclass
class Row:
    decay: Array  # float32[]: log of it, as of the next
    ending: Array  # float32[]
    tokens: Repeats
    lines: Repeats  # hashes of lines
    firsts: Array  # int32[lines]: the first token of each of these lines
    first: Array  # int32[]: that of the line that has begun; -1: it is blank so far
    state: Array  # int32[]: of the automaton
    hash: Array  # uint32[]: of the line that has begun


@struct.dataclass
class Shared:
    next: Array  # int16[S, C], see `line_types.LineTypes`
    ends: Array  # bool[S, C]
    power: Array  # uint32[S, C]
    add: Array  # uint32[S, C]
    rest: Array  # uint32[S, C]
    classes: Array  # int16 | int32[V]
    statements: Array  # bool[V]: tokens that begin a statement


class Rule(NamedTuple):
    """A rule's finding: the token to penalise and how often its block repeats."""

    token: Array  # int32[]
    n: Array  # int32[]; 0: nothing repeats


def transform(
    tokenizer: Any,
    eos: tuple[int, ...],
    vocab_size: int,
    decay: float = 0.9,
    ending: float = 0.8,
    tokens: int = 64,
    lines: int = 32,
    statements: Sequence[str] = STATEMENTS,
    of: str = PROBABILITY,
) -> base.LogitsTransform:
    """Penalise the tokens that would begin another repetition.

    Args:
        tokenizer: `tokenizer.token_bytes()` gives the bytes of every id.
        eos: ids of the end-of-sequence tokens.
        vocab_size: V.
        decay: factor of a token's probability for each repetition, above 0, at most 1.
        ending: EOS's probability is divided by it as often, above 0, at most 1.
        tokens: longest block of tokens that is looked for.
        lines: longest block of lines; 0: lines are not compared.
        statements: tokens of these bytes, spaces around them left out, begin a
            statement; with a newline among them, so do tokens of newlines and spaces.
        of: what the factors multiply, "probability" or "logit".

    Raises:
        MethodError: a factor outside (0, 1], a negative length, or another `of`.
    """
    for name, factor in (("decay", decay), ("ending", ending)):
        if not 0 < factor <= 1:
            raise MethodError(
                f"{name}={factor}: use a factor above 0, at most 1 (no effect); the "
                "paper's decay is 0.9 and its ending 0.8"
            )
    if tokens < 1 or lines < 0:
        raise MethodError(
            f"tokens={tokens}, lines={lines}: use blocks of at least 1 token, and of 0 "
            "lines (none) or more"
        )
    if of not in (PROBABILITY, LOGIT):
        raise MethodError(f"of={of!r}: use {PROBABILITY!r} or {LOGIT!r}")
    scale = _add if of == PROBABILITY else _multiply
    spelled = tokenizer.token_bytes()
    shared = _tables(spelled, statements, vocab_size)
    ends = jnp.asarray(eos, jnp.int32)

    def init(text: Array, length: Array) -> base.State:
        numbers = jnp.float32(math.log(decay)), jnp.float32(math.log(ending))
        # Without lines the rule of one is held, and not read.
        size = max(lines, 1)
        none = jnp.zeros(size, jnp.int32)
        row = Row(
            *numbers,
            tokens=empty(tokens, jnp.int32),
            lines=empty(size, jnp.uint32),
            firsts=none,
            first=jnp.int32(-1),
            state=jnp.int32(0),
            hash=jnp.uint32(0),
        )
        body = lambda i, row: read(row, shared, text[i])
        return base.State(lax.fori_loop(0, length, body, row), shared)

    def apply(state: base.State, logits: Array, aux: dict[str, Array]) -> Array:
        row, shared = state.row, state.shared
        rules = [rule(row.tokens, row.tokens.newest)]
        if lines:
            token, n = rule(row.lines, row.firsts)
            # Only a line's first token begins a block of lines.
            rules.append(Rule(token, jnp.where(row.first < 0, n, 0)))
        most, before = jnp.int32(0), Rule(jnp.int32(-1), jnp.int32(0))
        for token, n in rules:
            more = jnp.where(token == before.token, jnp.maximum(n - before.n, 0), n)
            logits = scale(logits, token, more * row.decay)
            most = jnp.maximum(most, jnp.where(shared.statements[token], n, 0))
            before = Rule(token, n)
        return scale(logits, ends, -most * row.ending)

    def advance(
        state: base.State, token: Array, logits: Array, aux: dict[str, Array]
    ) -> base.State:
        return base.State(read(state.row, state.shared, token), state.shared)

    return base.LogitsTransform(init, apply, advance)


def _add(logits: Array, at: Array, log_factor: Array) -> Array:
    """Multiply the probabilities before renormalisation."""
    return logits.at[at].add(log_factor)


def _multiply(logits: Array, at: Array, log_factor: Array) -> Array:
    """Multiply positive logits, and divide negative ones."""
    old, factor = logits[at], jnp.exp(log_factor)
    return logits.at[at].set(jnp.where(old > 0, old * factor, old / factor))


def _tables(
    spelled: Sequence[bytes], statements: Sequence[str], vocab_size: int
) -> Shared:
    """Lift the types of lines; C is padded to a power of two to share programs."""
    lifted = line_types.lift(line_types.lexer(), spelled, vocab_size)
    width = lifted.next.shape[1]
    room = ((0, 0), (0, (1 << (width - 1).bit_length()) - width))
    padded = {
        name: jnp.asarray(np.pad(getattr(lifted, name), room))
        for name in ("ends", "power", "add", "rest")
    }
    return Shared(
        next=jnp.asarray(token_dfa.compact(np.pad(lifted.next, room))),
        classes=jnp.asarray(token_dfa.compact(lifted.classes)),
        statements=jnp.asarray(_statements(spelled, statements, vocab_size)),
        **padded,
    )


def _statements(
    spelled: Sequence[bytes], statements: Sequence[str], vocab_size: int
) -> np.ndarray:
    """Return which tokens begin a statement, bool[V]."""
    mask = np.zeros(vocab_size, bool)
    words = {word.encode() for word in statements}
    for i, token in enumerate(spelled[:vocab_size]):
        is_newline = b"\n" in words and b"\n" in token and not token.strip()
        mask[i] = is_newline or token.strip(b" \t") in words
    return mask


def empty(size: int, dtype: Any) -> Repeats:
    """Return the repeats of an empty text."""
    return Repeats(jnp.zeros(size, dtype), jnp.zeros(size, jnp.int32), jnp.int32(0))


def append(repeats: Repeats, thing: Array) -> Repeats:
    """Append one to the text. ★"""
    distance = jnp.arange(1, len(repeats.newest) + 1)
    same = (repeats.newest == thing) & (distance <= repeats.count)
    return Repeats(
        jnp.roll(repeats.newest, 1).at[0].set(thing),
        jnp.where(same, repeats.runs + 1, 0),
        repeats.count + 1,
    )


def rule(repeats: Repeats, firsts: Array) -> Rule:
    """Find the smallest block that repeats; `firsts[r - 1]` begins the last r. ★"""
    times = repeats.runs // jnp.arange(1, len(repeats.runs) + 1)
    at = jnp.argmax(times > 0)
    return Rule(firsts[at], times[at])


def read(row: Row, shared: Shared, token: Array) -> Row:
    """Return the row after one more token. ★"""
    token = token.astype(jnp.int32)
    move = row.state, shared.classes[token]
    state = shared.next[move].astype(jnp.int32)
    whole, ended = row.hash * shared.power[move] + shared.add[move], shared.ends[move]
    hash_ = jnp.where(ended, shared.rest[move], whole)
    is_blank = lambda state, hash_: (state == 0) & (hash_ == 0)
    first = jnp.where(row.first < 0, token, row.first)
    is_line = ended & (whole != 0)
    lines = append(row.lines, whole)
    choose = lambda new, old: jnp.where(is_line, new, old)
    firsts = jnp.roll(row.firsts, 1).at[0].set(first)
    later = jnp.where(ended | (row.first < 0), token, row.first)
    return replace(
        row,
        tokens=append(row.tokens, token),
        lines=Repeats(
            choose(lines.newest, row.lines.newest),
            choose(lines.runs, row.lines.runs),
            choose(lines.count, row.lines.count),
        ),
        firsts=choose(firsts, row.firsts),
        first=jnp.where(is_blank(state, hash_), -1, later),
        state=state,
        hash=hash_,
    )
