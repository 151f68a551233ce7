"""The syntax of ECMA-262's regular expressions, which JSON Schema uses.

A pattern becomes a tree of tuples, which are hashable:

    ("set", intervals) · ("seq", trees) · ("alt", trees) · ("rep", tree, low, high)
    ("start",) · ("end",) · ("word", is_boundary) · ("look", is_negative, tree)

Intervals are [low, high) of code points, sorted and apart. `\\d`, `\\w` and `\\b` are
ASCII's, as in ECMA-262 without the flag i; `.` is any character but a line terminator,
and `$` is the very end of the string.
"""

import string
import unicodedata
from functools import cache
from typing import Any

from decoding.automata.regex_syntax import POINTS, outside

MOST_REPEATS = 20_000

Intervals = tuple[tuple[int, int], ...]
Tree = tuple[Any, ...]


class SyntaxFault(ValueError):
    """A pattern that is no expression of ECMA-262, or is not supported."""


def joined(spans: list[tuple[int, int]]) -> Intervals:
    """Return the union of `spans` as intervals."""
    union: list[tuple[int, int]] = []
    for low, high in sorted(spans):
        if union and low <= union[-1][1]:
            union[-1] = (union[-1][0], max(high, union[-1][1]))
        elif low < high:
            union.append((low, high))
    return tuple(union)


DIGIT: Intervals = ((48, 58),)
WORD: Intervals = ((48, 58), (65, 91), (95, 96), (97, 123))
SPACE: Intervals = (
    (9, 14), (32, 33), (0xA0, 0xA1), (0x1680, 0x1681), (0x2000, 0x200B),
    (0x2028, 0x202A), (0x202F, 0x2030), (0x205F, 0x2060), (0x3000, 0x3001),
    (0xFEFF, 0xFF00),
)  # fmt: skip
_DOT = outside(((10, 11), (13, 14), (0x2028, 0x202A)))
_CLASSES = {
    "d": DIGIT, "D": outside(DIGIT), "w": WORD, "W": outside(WORD),
    "s": SPACE, "S": outside(SPACE),
}  # fmt: skip
_CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "0": 0}
_EMPTY: Tree = ("seq", ())
_LONG = {
    "Letter": "L", "Lowercase_Letter": "Ll", "Uppercase_Letter": "Lu", "Number": "N",
    "Decimal_Number": "Nd", "Punctuation": "P", "Symbol": "S", "Mark": "M",
    "Separator": "Z", "Alphabetic": "L", "digit": "Nd", "punct": "P",
}  # fmt: skip


@cache
def _category(name: str) -> Intervals:
    """Return the characters of a general category of Unicode."""
    if name == "ASCII":
        return ((0, 128),)
    name = _LONG.get(name, name)
    marks = [
        unicodedata.category(chr(point)).startswith(name) for point in range(POINTS)
    ]
    edges = [i for i in range(1, POINTS) if marks[i] != marks[i - 1]]
    edges = [0, *edges] if marks[0] else edges
    edges = edges if len(edges) % 2 == 0 else [*edges, POINTS]
    if not edges:
        raise SyntaxFault(f"uses the unknown property {name!r}")
    return tuple(zip(edges[::2], edges[1::2]))


class _Parser:
    def __init__(self, text: str):
        self.text, self.at = text, 0

    def more(self) -> bool:
        return self.at < len(self.text)

    def peek(self, word: str) -> bool:
        return self.text.startswith(word, self.at)

    def take(self, word: str) -> bool:
        if self.peek(word):
            self.at += len(word)
            return True
        return False

    def next(self) -> str:
        if not self.more():
            raise SyntaxFault("ends too early")
        self.at += 1
        return self.text[self.at - 1]

    def alternatives(self) -> Tree:
        options = [self.sequence()]
        while self.take("|"):
            options.append(self.sequence())
        return options[0] if len(options) == 1 else ("alt", tuple(options))

    def sequence(self) -> Tree:
        parts: list[Tree] = []
        while self.more() and not self.peek("|") and not self.peek(")"):
            parts.append(self.repeated(self.atom()))
        return parts[0] if len(parts) == 1 else ("seq", tuple(parts))

    def repeated(self, tree: Tree) -> Tree:
        bounds = self.bounds()
        if bounds is None:
            return tree
        if tree[0] in ("start", "end", "word", "look"):
            raise SyntaxFault("repeats an assertion")
        self.take("?")  # lazy: the same strings
        if self.peek("+") or self.peek("*") or self.bounds() is not None:
            raise SyntaxFault("repeats a repetition")
        return ("rep", tree, *bounds)

    def bounds(self) -> tuple[int, int | None] | None:
        for sign, low, high in (("*", 0, None), ("+", 1, None), ("?", 0, 1)):
            if self.take(sign):
                return low, high
        end = self.text.find("}", self.at)
        if not self.peek("{") or end < 0:
            return None
        low_text, comma, high_text = self.text[self.at + 1 : end].partition(",")
        if comma and not low_text and high_text.isdecimal():
            raise SyntaxFault("has a repetition without its lower bound")
        if not low_text.isdecimal() or not (high_text.isdecimal() or not high_text):
            return None  # a brace that stands for itself
        self.at = end + 1
        least = int(low_text)
        most = int(high_text) if high_text else (None if comma else least)
        if max(least, most or 0) > MOST_REPEATS:
            raise SyntaxFault(f"repeats more than {MOST_REPEATS} times")
        if most is not None and most < least:
            raise SyntaxFault("repeats at least more than at most")
        return least, most

    def atom(self) -> Tree:
        char = self.next()
        if char == "^":
            return ("start",)
        if char == "$":
            return ("end",)
        if char == ".":
            return ("set", _DOT)
        if char == "(":
            return self.group()
        if char == "[":
            return ("set", self.one_of())
        if char in "*+?":
            raise SyntaxFault(f"has nothing before {char!r}")
        if char == "\\":
            if self.take("b") or self.take("B"):
                return ("word", self.text[self.at - 1] == "b")
            return ("set", self.escape())
        return ("set", ((ord(char), ord(char) + 1),))

    def group(self) -> Tree:
        look = None
        if self.take("?"):
            if self.take("=") or self.take("!"):
                look = self.text[self.at - 1] == "!"
            elif self.peek("<=") or self.peek("<!"):
                raise SyntaxFault("looks behind")
            elif self.take("<") or self.take("P<"):  # P: Python's spelling
                name = self.text[self.at :].partition(">")[0]
                if not name.isidentifier():
                    raise SyntaxFault(f"has a group of the name {name!r}")
                self.at += len(name) + 1
            elif not self.take(":"):
                raise SyntaxFault("has a group of unknown kind")
        tree = self.alternatives()
        if not self.take(")"):
            raise SyntaxFault("has an open group")
        return tree if look is None else ("look", look, tree)

    def escape(self) -> Intervals:
        char = self.next()
        if char in _CLASSES:
            return _CLASSES[char]
        if char in "pP" and self.take("{"):
            name, _, rest = self.text[self.at :].partition("}")
            self.at = len(self.text) - len(rest)
            spans = _category(name.partition("=")[2] or name)
            return spans if char == "p" else outside(spans)
        if char == "0" and self.more() and self.text[self.at].isdecimal():
            raise SyntaxFault("has an octal escape")
        point = _CONTROLS.get(char)
        if char == "x":
            point = self.hexadecimal(2)
        elif char == "u":
            point = self.unicode()
        elif char == "c":
            point = ord(self.next()) % 32
        elif point is None:
            if char.isalnum():
                what = "refers back" if char.isdecimal() else f"escapes {char!r}"
                raise SyntaxFault(what)
            point = ord(char)
        return ((point, point + 1),)

    def hexadecimal(self, digits: int) -> int:
        text = self.text[self.at : self.at + digits]
        self.at += digits
        if len(text) != max(digits, 1) or not set(text) <= set(string.hexdigits):
            raise SyntaxFault("has an escape without its digits")
        return int(text, 16)

    def unicode(self) -> int:
        if self.take("{"):
            end = self.text.find("}", self.at)
            point = self.hexadecimal(max(end - self.at, 0))
            self.at += 1
            if point >= POINTS:
                raise SyntaxFault("names a character past U+10FFFF")
            return point
        point = self.hexadecimal(4)
        if 0xD800 <= point < 0xDC00 and self.peek("\\u"):
            before = self.at
            self.at += 2
            low = self.hexadecimal(4)
            if 0xDC00 <= low < 0xE000:
                return 0x10000 + (point - 0xD800) * 0x400 + low - 0xDC00
            self.at = before
        return point

    def one_of(self) -> Intervals:
        negated = self.take("^")
        spans: list[tuple[int, int]] = []
        while not self.take("]"):
            first = self.member()
            # A dash that is first, last or beside a class stands for itself.
            if self.peek("-") and not self.peek("-]"):
                self.at += 1
                last = self.member()
                if len(first) == len(last) == 1 and all(
                    b - a == 1 for a, b in first + last
                ):
                    if first[0][0] > last[0][0]:
                        raise SyntaxFault("has a range out of order")
                    spans.append((first[0][0], last[0][1]))
                else:
                    spans.extend((*first, (45, 46), *last))
            else:
                spans.extend(first)
        return outside(joined(spans)) if negated else joined(spans)

    def member(self) -> Intervals:
        char = self.next()
        if char != "\\":
            return ((ord(char), ord(char) + 1),)
        if self.take("b"):
            return ((8, 9),)
        return self.escape()


def parse(pattern: str) -> Tree:
    """Return the tree of `pattern`.

    Raises:
        SyntaxFault: it is invalid or not supported.
    """
    parser = _Parser(pattern)
    tree = parser.alternatives()
    if parser.more():
        raise SyntaxFault("closes a group that is not open")
    return tree


def _looks(tree: Any) -> bool:
    return isinstance(tree, tuple) and (
        tree[:1] == ("look",) or (tree[:1] != ("set",) and any(map(_looks, tree)))
    )


@cache
def conjunction(pattern: str) -> tuple[tuple[bool, Tree], ...]:
    """Return trees, each with whether it must match, that hold where `pattern` does.

    There is more than one tree if the pattern looks ahead behind `^`.

    Raises:
        SyntaxFault: it is invalid or looks around elsewhere.
    """
    tree = parse(pattern)
    if not _looks(tree):
        return ((True, tree),)
    parts = list(tree[1]) if tree[0] == "seq" else [tree]
    # A look ahead at the end is read: more may follow a match in any case.
    if parts[-1][0] == "look" and not parts[-1][1]:
        parts[-1] = parts[-1][2]
    trees: list[tuple[bool, Tree]] = []
    if parts[0] == ("start",):
        while len(parts) > 1 and parts[1][0] == "look":
            _, negative, ahead = parts.pop(1)
            trees.append((not negative, ("seq", (("start",), ahead))))
    trees.append((True, ("seq", tuple(parts))))
    if any(_looks(part) for _, part in trees):
        raise SyntaxFault("looks around a place that is not behind ^")
    return tuple(trees)
