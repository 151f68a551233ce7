"""GBNF and EBNF: texts of grammars to rules.

GBNF is read as llama.cpp reads it (llama-grammar.cpp): a rule ends with its line, but
inside parentheses and behind `|` or `::=`; `\\xNN`, `\\uNNNN` and `\\UNNNNNNNN` are
code points; a literal or class is repeated as a whole; an upper bound of repetition
above 2,000 is none; of two rules of one name the last one holds; an empty class `[]` is
the empty text. Its tokens, `<think>` and `<[1000]>`, are refused: they are no bytes.

EBNF is that of transformers-CFG: the same, with `_` and letters of every script in
names, and `{,n}` in repetitions.
"""

from decoding.automata.grammar_rules import (
    EMPTY,
    Call,
    Chars,
    Choice,
    Expression,
    Grammar,
    Repeat,
    Sequence,
    Text,
    calls,
)
from decoding.automata.regex_syntax import POINTS, outside
from models.errors import ConstraintError, hint

MOST_REPEATS = 2000
DEEPEST = 60  # parentheses within parentheses

_ESCAPES = {"t": "\t", "r": "\r", "n": "\n"}
_HEX = {"x": 2, "u": 4, "U": 8}
_DIGITS = "0123456789"
_HEX_DIGITS = _DIGITS + "abcdefABCDEF"


def parse_rules(source: str, start: str, kind: str = "gbnf") -> Grammar:
    """Read the rules of a GBNF or EBNF text.

    Raises:
        ConstraintError: the text is no grammar, or a rule is missing.
    """
    rules = _Reader(source, kind).rules()
    check_names(rules, start, kind)
    return Grammar(rules, start)


def check_names(rules: dict[str, Expression], start: str, kind: str) -> None:
    """Raise ConstraintError if `start`, or a rule that is called, is not defined."""
    missing = [("it starts with", start)] if start not in rules else []
    for name, expression in rules.items():
        missing += [
            (f"{name} calls", called)
            for called in calls(expression)
            if called not in rules
        ]
    if missing:
        who, name = missing[0]
        raise ConstraintError(
            f"{kind} grammar: {who} {name!r}, which is no rule"
            f"{hint(name, rules)}: define it"
        )


class _Reader:
    """A position in the text of a grammar."""

    def __init__(self, source: str, kind: str) -> None:
        self.source, self.kind, self.at = source, kind, 0
        self.depth = 0

    def error(self, what: str) -> ConstraintError:
        line = self.source.count("\n", 0, self.at) + 1
        rest = self.source[self.at : self.at + 24]
        return ConstraintError(f"{self.kind} grammar, line {line}, {rest!r}: {what}")

    def peek(self, ahead: int = 0) -> str:
        at = self.at + ahead
        return self.source[at] if at < len(self.source) else ""

    def skip(self, newlines: bool) -> None:
        """Pass over spaces and comments, and over newlines where they mean nothing."""
        while char := self.peek():
            if char == "#":
                while self.peek() not in ("", "\r", "\n"):
                    self.at += 1
            elif char in "\r\n":
                if not newlines:
                    return
                self.at += 1
            elif char in " \t" or (self.kind == "ebnf" and char.isspace()):
                self.at += 1
            else:
                return

    def is_word(self, char: str) -> bool:
        if self.kind == "ebnf":
            return char.isalnum() or (char != "" and char in "-_")
        return char.isascii() and (char.isalnum() or char == "-")

    def rules(self) -> dict[str, Expression]:
        rules: dict[str, Expression] = {}
        self.skip(True)
        while self.peek():
            name = self.name()
            self.skip(False)
            if not self.source.startswith("::=", self.at):
                raise self.error(f"write ::= behind the rule's name {name!r}")
            self.at += 3
            self.skip(True)
            rules[name] = self.choice(False)
            if self.peek() not in ("", "\r", "\n"):
                raise self.error(f"the rule {name!r} must end with its line")
            self.skip(True)
        return rules

    def name(self) -> str:
        first = self.at
        while self.is_word(self.peek()):
            self.at += 1
        if self.at == first:
            raise self.error("expected a rule's name")
        return self.source[first : self.at]

    def choice(self, nested: bool) -> Expression:
        options = [self.sequence(nested)]
        while self.peek() == "|":
            self.at += 1
            self.skip(True)
            options.append(self.sequence(nested))
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def sequence(self, nested: bool) -> Expression:
        items: list[Expression] = []
        while char := self.peek():
            if char == '"':
                items.append(self.literal())
            elif char == "[":
                items.append(self.characters())
            elif char == "(":
                items.append(self.group())
            elif char == ".":
                self.at += 1
                items.append(Chars(((0, POINTS),)))
            elif self.is_word(char):
                items.append(Call(self.name()))
            elif char in "*+?{":
                low, high = self.bounds()
                if not items or items[-1] in (EMPTY, Text(b"")):
                    raise self.error("a repetition must stand behind an item")
                items.append(Repeat(items.pop(), low, high))
            elif char in "<!":
                raise self.error(
                    "tokens are not bytes: write the text that the token stands for"
                )
            else:
                break
            self.skip(nested)
        return items[0] if len(items) == 1 else Sequence(tuple(items))

    def group(self) -> Expression:
        self.depth += 1
        if self.depth > DEEPEST:
            raise self.error(f"over {DEEPEST} parentheses within another: use rules")
        self.at += 1
        self.skip(True)
        inner = self.choice(True)
        if self.peek() != ")":
            raise self.error("expected )")
        self.at += 1
        self.depth -= 1
        return inner

    def literal(self) -> Expression:
        self.at += 1
        points = []
        while self.peek() != '"':
            points.append(self.character())
        self.at += 1
        if any(0xD800 <= point < 0xE000 for point in points):
            return Chars(())  # a surrogate has no UTF-8 form: never read
        return Text("".join(map(chr, points)).encode())

    def characters(self) -> Expression:
        self.at += 1
        negated = self.peek() == "^"
        self.at += negated
        spans = []
        while self.peek() != "]":
            low = high = self.character()
            if self.peek() == "-" and self.peek(1) != "]":
                self.at += 1
                high = self.character()
            spans.append((low, high + 1))
        self.at += 1
        if not spans:
            return EMPTY
        spans = [(low, high) for low, high in spans if low < high]
        return Chars(outside(spans) if negated else tuple(sorted(spans)))

    def character(self) -> int:
        char = self.peek()
        if not char:
            raise self.error("the grammar ends inside a literal or class")
        self.at += 1
        if char != "\\":
            return ord(char)
        kind = self.peek()
        self.at += 1
        if kind in _HEX:
            digits = self.source[self.at : self.at + _HEX[kind]]
            if len(digits) < _HEX[kind] or not all(d in _HEX_DIGITS for d in digits):
                raise self.error(f"\\{kind} takes {_HEX[kind]} hexadecimal digits")
            self.at += len(digits)
            if int(digits, 16) >= POINTS:
                raise self.error(f"\\{kind}{digits} is above the last code point")
            return int(digits, 16)
        if kind not in ("t", "r", "n", "\\", '"', "[", "]", "-"):
            raise self.error(
                f"\\{kind} is no escape: use \\x, \\u, \\t, \\r, \\n, \\\\"
            )
        return ord(_ESCAPES.get(kind, kind))

    def bounds(self) -> tuple[int, int | None]:
        char = self.peek()
        self.at += 1
        if char != "{":
            return {"*": (0, None), "+": (1, None), "?": (0, 1)}[char]
        self.skip(True)
        low = self.count()
        if low is None and not (self.kind == "ebnf" and self.peek() == ","):
            raise self.error("a repetition takes {n}, {m,} or {m,n}")
        self.skip(True)
        high = low
        if self.peek() == ",":
            self.at += 1
            self.skip(True)
            high = self.count()
            self.skip(True)
        if self.peek() != "}":
            raise self.error("a repetition takes {n}, {m,} or {m,n}")
        self.at += 1
        low = low or 0
        if low > MOST_REPEATS:
            raise self.error(f"repeated {low} times, of {MOST_REPEATS} at most")
        if high is not None and high < low:
            raise self.error(f"the bounds {low} and {high} are in the wrong order")
        return low, None if high is None or high > MOST_REPEATS else high

    def count(self) -> int | None:
        first = self.at
        while self.peek() and self.peek() in _DIGITS:
            self.at += 1
        digits = self.source[first : self.at]
        if len(digits) > 9:
            raise self.error("too large a count")
        return int(digits) if digits else None
