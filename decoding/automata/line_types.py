"""Lines of code as sequences of types: names, numbers, strings, keywords, signs.

An automaton over bytes emits the types while it reads: a word when it ends, a sign with
its byte, a comment, string or bracketed list when it begins. White space has no type,
so indentation is left out. For example, `if x[0] == 'a':` is

    if NAME LIST = = STRING :

A list ends at its first `]`; strings in single quotes end at the line's end at the
latest; a text in triple quotes is one comment, whatever lines it spans.

A line is held as one number, a polynomial in its types t_1 .. t_k,

    hash = t_1 m^(k-1) + ... + t_k    mod 2^32,

so that a token, which may hold any part of a line, is a map hash -> hash * m^j + a. The
lift computes that map for every token and state on the host: how a text is cut into
tokens changes nothing. Equal columns are one class, as in `token_dfa`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

KEYWORDS = tuple(
    "False None True and as assert async await break class continue def del elif else "
    "except finally for from global if import in is lambda nonlocal not or pass print "
    "raise return test try while with yield".split()
)
MULTIPLIER = 0x9E3779B1  # odd, so that no type of a line is lost
WORD = np.zeros(256, bool)
WORD[[*b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"]] = True
WORD[128:] = True
BLANK = frozenset(b" \t\r\n\f\v")
NEWLINE = ord("\n")


class Lexer(NamedTuple):
    """The automaton over bytes."""

    next: np.ndarray  # int32[S, 256]
    power: np.ndarray  # uint32[S, 256]: m^j of the j types that the move emits
    add: np.ndarray  # uint32[S, 256]: their polynomial
    ends: np.ndarray  # bool[S, 256]: the move ends a line, after its types


class LineTypes(NamedTuple):
    """The automaton over tokens; state 0 is that of an empty text."""

    next: np.ndarray  # int32[S, C]
    ends: np.ndarray  # bool[S, C]: a line ends inside the token
    power: np.ndarray  # uint32[S, C]: hash -> hash * power + add, to the last line end
    add: np.ndarray  # uint32[S, C]
    rest: np.ndarray  # uint32[S, C]: hash of what stands behind the last line end
    classes: np.ndarray  # int32[V]


def _identifiers(count: int) -> np.ndarray:
    """Draw the numbers of `count` types, uint32; they never change."""
    rng = np.random.default_rng(0)
    return rng.integers(1, 2**32, count, np.uint32)


def _polynomial(types: Sequence[int]) -> tuple[int, int]:
    """Return m^j and the polynomial of j types."""
    power, total = 1, 0
    for one in types:
        power = power * MULTIPLIER % 2**32
        total = (total * MULTIPLIER + one) % 2**32
    return power, total


class _Builder:
    """States by name, and their moves by byte."""

    def __init__(self) -> None:
        numbers = _identifiers(256 + len(KEYWORDS) + 5).tolist()
        self.signs, rest = numbers[:256], numbers[256:]
        self.keywords = dict(zip(KEYWORDS, rest))
        names = ("NAME", "NUMBER", "STRING", "COMMENT", "LIST")
        self.kinds = dict(zip(names, rest[len(KEYWORDS) :]))
        self.names: dict[str, int] = {}
        self.moves: dict[tuple[int, int], tuple[int, tuple[int, ...], bool]] = {}

    def state(self, name: str) -> int:
        return self.names.setdefault(name, len(self.names))

    def move(
        self, name: str, bytes_: Sequence[int], to: str, *types: int, ends: bool = False
    ) -> None:
        for byte in bytes_:
            self.moves[self.state(name), byte] = self.state(to), types, ends

    def between(self, name: str, *before: int) -> None:
        """Move as from white space, after emitting the types `before`."""
        self.move(name, range(256), "blank", *before)
        for byte in range(256):
            if byte not in BLANK and not WORD[byte]:
                self.move(name, [byte], "blank", *before, self.signs[byte])
        self.move(name, [NEWLINE], "blank", *before, ends=True)
        self.move(name, [b for b in range(256) if WORD[b]], "name", *before)
        for first in sorted({word[0] for word in KEYWORDS}):
            self.move(name, [ord(first)], "word " + first, *before)
        self.move(name, b"0123456789", "number", *before)
        self.move(name, b"#", "comment", *before, self.kinds["COMMENT"])
        self.move(name, b"[", "list", *before, self.kinds["LIST"])
        for quote in "'\"":
            self.move(name, quote.encode(), f"{quote} one", *before)

    def word(self, name: str, kind: int) -> None:
        """Move from a word that would be of `kind` if it ended here."""
        self.between(name, kind)
        to = "number" if name == "number" else "name"
        self.move(name, [b for b in range(256) if WORD[b]], to)

    def quoted(self, quote: str) -> None:
        """Move from inside strings and texts in triple quotes."""
        one, two, inside = f"{quote} one", f"{quote} two", f"{quote} inside"
        triple, mark = f"{quote} triple", quote.encode()
        string, comment = self.kinds["STRING"], self.kinds["COMMENT"]
        self.between(two, string)  # the string was empty
        self.move(two, mark, triple + " 0", comment)
        for name, types in ((one, (string,)), (inside, ())):
            self.move(name, range(256), inside, *types)
            self.move(name, [NEWLINE], "blank", *types, ends=True)
            self.move(name, b"\\", inside + " escape", *types)
            self.move(name, mark, two if name == one else "blank")
        self.move(inside + " escape", range(256), inside)
        self.move(inside + " escape", [NEWLINE], "blank", ends=True)
        for seen in range(3):
            self.move(f"{triple} {seen}", range(256), triple + " 0")
            self.move(f"{triple} {seen}", b"\\", triple + " escape")
            to = "blank" if seen == 2 else f"{triple} {seen + 1}"
            self.move(f"{triple} {seen}", mark, to)
        self.move(triple + " escape", range(256), triple + " 0")


def lexer() -> Lexer:
    """Build the automaton over bytes; state 0 lies between words."""
    builder = _Builder()
    builder.between("blank")
    builder.word("name", builder.kinds["NAME"])
    builder.word("number", builder.kinds["NUMBER"])
    for beginning in sorted({w[:n] for w in KEYWORDS for n in range(1, len(w) + 1)}):
        kind = builder.keywords.get(beginning, builder.kinds["NAME"])
        builder.word("word " + beginning, kind)
        for longer in {w[: len(beginning) + 1] for w in KEYWORDS}:
            if longer[:-1] == beginning and longer != beginning:
                name = "word " + beginning
                builder.move(name, longer[-1].encode(), "word " + longer)
    builder.move("comment", range(256), "comment")
    builder.move("comment", [NEWLINE], "blank", ends=True)
    builder.move("list", range(256), "list")
    builder.move("list", b"]", "blank")
    for quote in "'\"":
        builder.quoted(quote)
    shape = (len(builder.names), 256)
    step, ends = np.zeros(shape, np.int32), np.zeros(shape, bool)
    power, add = np.ones(shape, np.uint32), np.zeros(shape, np.uint32)
    for (state, byte), (to, types, is_end) in builder.moves.items():
        step[state, byte], ends[state, byte] = to, is_end
        power[state, byte], add[state, byte] = _polynomial(types)
    return Lexer(step, power, add, ends)


def _after(lexer: Lexer, column: np.ndarray, byte: int) -> np.ndarray:
    """Return a token's column [5, S] when `byte` is appended to the token.

    The rows are those of `LineTypes`, uint32. Where no line has ended, `rest` is 0.
    """
    state, ends, power, add, rest = column
    move = (state, byte)
    is_end, by, more = lexer.ends[move], lexer.power[move], lexer.add[move]
    ended = ends.astype(bool)
    # Before the first line end types lengthen the line, behind it the rest, which the
    # next line end of the same token adds to the line.
    add = np.where(ended, add, add * by + more)
    power = np.where(ended, power, power * by)
    rest = np.where(ended, rest * by + more, 0)
    fold = is_end & ended & (rest != 0)
    add = np.where(fold, add * np.uint32(MULTIPLIER) + rest, add)
    power = np.where(fold, power * np.uint32(MULTIPLIER), power)
    rest = np.where(is_end, 0, rest)
    return np.stack([lexer.next[move], ended | is_end, power, add, rest]).astype(
        np.uint32
    )


def lift(lexer: Lexer, tokens: Sequence[bytes], vocab_size: int) -> LineTypes:
    """Lift the automaton to whole tokens.

    Lines that begin and end inside one token count as part of the line before them.

    Args:
        lexer: the automaton over bytes.
        tokens: the bytes of each token; those without bytes change nothing.
        vocab_size: V.
    """
    size = len(lexer.next)
    nothing = np.zeros((5, size), np.uint32)
    nothing[0], nothing[2] = np.arange(size), 1
    columns, known = [nothing], {nothing.tobytes(): 0}
    classes = np.zeros(vocab_size, np.int64)
    lengths = np.array([len(token) for token in tokens[:vocab_size]], np.int64)
    offsets = np.cumsum(lengths) - lengths
    flat = np.frombuffer(b"".join(tokens[:vocab_size]), np.uint8)
    for position in range(lengths.max(initial=0)):
        at = np.flatnonzero(lengths > position)
        pairs = classes[at] * 256 + flat[offsets[at] + position]
        pairs, inverse = np.unique(pairs, return_inverse=True)
        reached = np.empty(len(pairs), np.int64)
        for i, pair in enumerate(pairs.tolist()):
            column = _after(lexer, columns[pair >> 8], pair & 255)
            reached[i] = known.setdefault(column.tobytes(), len(columns))
            if reached[i] == len(columns):
                columns.append(column)
        classes[at] = reached[inverse]
    used, classes = np.unique(classes, return_inverse=True)
    step, ends, power, add, rest = np.stack([columns[i] for i in used], -1)
    return LineTypes(
        step.astype(np.int32),
        ends.astype(bool),
        power,
        add,
        rest,
        classes.astype(np.int32),
    )


def hashes(lexer: Lexer, text: bytes) -> tuple[list[int], int]:
    """Return the hashes of the whole lines of a text, and that of the rest."""
    state, hash_, lines = 0, 0, []
    for byte in text:
        power, add = int(lexer.power[state, byte]), int(lexer.add[state, byte])
        hash_ = (hash_ * power + add) % 2**32
        if lexer.ends[state, byte]:
            lines.append(hash_)
            hash_ = 0
        state = int(lexer.next[state, byte])
    return lines, hash_
