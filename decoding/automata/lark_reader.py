"""The text of a Lark grammar as definitions; `lark_syntax` makes rules of them."""

import ast
import re
from typing import NamedTuple

from decoding.automata import lark_terminals
from decoding.automata.grammar_syntax import DEEPEST, MOST_REPEATS
from models.errors import ConstraintError, hint

_TOKENS = re.compile(
    r"""(?P<space>[ \t\f]+|//[^\n]*|\#[^\n]*)
    | (?P<newline>\r?\n\s*)
    | (?P<string>"(?:\\.|[^"\\\n])*"i?)
    | (?P<regexp>/(?!/)(?:\\.|[^/\\\n])+/[imslux]*)
    | (?P<name>[!?]*_?[A-Za-z][_A-Za-z0-9]*)
    | (?P<number>[+-]?\d+)
    | (?P<mark>->|\.\.|[%:|()\[\]{}~.,+*?])""",
    re.VERBOSE,
)


class _Token(NamedTuple):
    kind: str
    text: str
    line: int


# Nodes of a parsed grammar: ("sequence" | "choice", items), ("repeat", item, low,
# high), ("name", name), ("use", template, arguments), ("string", text, is caseless),
# ("regexp", pattern), ("range", first, last).
Node = tuple


class Definition(NamedTuple):
    parameters: tuple[str, ...]
    node: Node


def _tokens(source: str) -> list[_Token]:
    tokens, at, depth = [], 0, 0
    while at < len(source):
        match = _TOKENS.match(source, at)
        line = source.count("\n", 0, at) + 1
        if match is None:
            raise ConstraintError(
                f"lark grammar, line {line}, {source[at : at + 24]!r}: unknown symbol"
            )
        kind, text, at = str(match.lastgroup), match.group(), match.end()
        if kind == "mark":
            depth += (text in "([{") - (text in ")]}")
        if kind != "space" and not (kind == "newline" and depth > 0):
            tokens.append(_Token(kind, text, line))
    return [*tokens, _Token("newline", "\n", source.count("\n") + 1)]


class Reader:
    """A position in the tokens of a grammar, and what has been defined so far."""

    def __init__(self, source: str) -> None:
        self.tokens, self.at, self.depth = _tokens(source), 0, 0
        self.definitions: dict[str, Definition] = {}
        self.ignored: list[Node] = []
        self.declared: set[str] = set()

    def error(self, what: str) -> ConstraintError:
        line = self.tokens[min(self.at, len(self.tokens) - 1)].line
        shown = " ".join(t.text for t in self.tokens[self.at : self.at + 4]).strip()
        return ConstraintError(f"lark grammar, line {line}, {shown!r}: {what}")

    def peek(self) -> _Token:
        if self.at < len(self.tokens):
            return self.tokens[self.at]
        return _Token("newline", "", 0)

    def take(self, *texts: str) -> bool:
        """Pass over a mark, if it is one of `texts`."""
        is_next = self.peek().kind == "mark" and self.peek().text in texts
        self.at += is_next
        return is_next

    def expect(self, text: str) -> None:
        if not self.take(text):
            raise self.error(f"expected {text}")

    def name(self) -> str:
        token = self.peek()
        if token.kind != "name":
            raise self.error("expected a name")
        self.at += 1
        return token.text.lstrip("!?")

    def statements(self) -> None:
        while self.at < len(self.tokens):
            if self.peek().kind == "newline":
                self.at += 1
                continue
            if self.take("%"):
                self.directive()
            else:
                self.definition()
            if self.peek().kind != "newline":
                raise self.error("expected the end of the line")

    def definition(self) -> None:
        name, parameters = self.name(), []
        if self.take("{"):
            parameters.append(self.name())
            while self.take(","):
                parameters.append(self.name())
            self.expect("}")
        if self.take("."):
            self.at += self.peek().kind == "number"
        self.expect(":")
        self.definitions[name] = Definition(tuple(parameters), self.choice())

    def directive(self) -> None:
        kind = self.name()
        if kind == "ignore":
            self.ignored.append(self.choice())
        elif kind == "import":
            self.imported()
        elif kind == "declare":
            while self.peek().kind == "name":
                self.declared.add(self.name())
        else:
            raise self.error(f"%{kind} is not supported: write the rule itself")

    def imported(self) -> None:
        is_relative = self.take(".")
        path = [self.name()]
        while self.take("."):
            path.append(self.name())
        names = {path[-1]: path[-1]} if len(path) > 1 else {}
        if self.take("("):
            names = {}
            while not self.take(")"):
                names[self.name()] = ""
                self.take(",")
            names = {name: name for name in names}
        elif self.take("->"):
            names = {path[-1]: self.name()}
        if is_relative or path[0] != "common":
            raise self.error("only %import common is supported: write the rules here")
        for name, alias in names.items():
            if name not in lark_terminals.COMMON:
                raise self.error(
                    f"common has no {name!r}{hint(name, lark_terminals.COMMON)}: write "
                    "the terminal here"
                )
            node = ("regexp", lark_terminals.COMMON[name])
            self.definitions[alias] = Definition((), node)

    def choice(self) -> Node:
        options = [self.sequence()]
        while self.bar():
            options.append(self.sequence())
        return options[0] if len(options) == 1 else ("choice", tuple(options))

    def bar(self) -> bool:
        """Pass over `|`, which may begin a line."""
        after = self.at
        while after < len(self.tokens) and self.tokens[after].kind == "newline":
            after += 1
        is_bar = after < len(self.tokens) and self.tokens[after][:2] == ("mark", "|")
        if is_bar:
            self.at = after + 1
        return is_bar

    def sequence(self) -> Node:
        items: list[Node] = []
        while True:
            token = self.peek()
            if token.kind in ("name", "string", "regexp") or token.text in ("(", "["):
                items.append(self.repeated(self.atom()))
            elif self.take("->"):
                self.name()
            else:
                break
        return items[0] if len(items) == 1 else ("sequence", tuple(items))

    def atom(self) -> Node:
        token = self.peek()
        self.at += 1
        if token.text in ("(", "[") and token.kind == "mark":
            self.depth += 1
            if self.depth > DEEPEST:
                raise self.error(f"over {DEEPEST} parentheses within another")
            inner = self.choice()
            self.expect(")" if token.text == "(" else "]")
            self.depth -= 1
            return inner if token.text == "(" else ("repeat", inner, 0, 1)
        if token.kind == "regexp":
            return ("regexp", self.pattern(token.text))
        if token.kind == "string":
            text, caseless = self.string(token)
            if not self.take(".."):
                return ("string", text, caseless)
            last = self.peek()
            self.at += 1
            if last.kind != "string" or len(text) != 1:
                raise self.error("a range takes two characters")
            return ("range", text, self.string(last)[0])
        name = token.text.lstrip("!?")
        if not self.take("{"):
            return ("name", name)
        arguments = [self.repeated(self.atom())]
        while self.take(","):
            arguments.append(self.repeated(self.atom()))
        self.expect("}")
        return ("use", name, tuple(arguments))

    def string(self, token: _Token) -> tuple[str, bool]:
        caseless = token.text.endswith("i")
        try:
            text = ast.literal_eval(token.text[: len(token.text) - caseless])
            text.encode()
        except (SyntaxError, ValueError) as error:
            self.at -= 1
            raise self.error(f"no string: {error}") from error
        return text, caseless

    def pattern(self, text: str) -> str:
        body, _, flags = text[1:].rpartition("/")
        if set(flags) - set("imsux"):
            raise self.error("flags are i, m, s, u and x")
        kept = "".join(sorted(set(flags) & set("isx")))
        return f"(?{kept}:{body})" if kept else f"(?:{body})"

    def repeated(self, item: Node) -> Node:
        while True:
            if self.take("*"):
                item = ("repeat", item, 0, None)
            elif self.take("+"):
                item = ("repeat", item, 1, None)
            elif self.take("?"):
                item = ("repeat", item, 0, 1)
            elif self.take("~"):
                low = self.count()
                item = ("repeat", item, low, self.count() if self.take("..") else low)
                if item[2] > item[3]:
                    raise self.error("the bounds are in the wrong order")
            else:
                return item

    def count(self) -> int:
        token = self.peek()
        if token.kind != "number" or not 0 <= int(token.text[:9]) <= MOST_REPEATS:
            raise self.error(f"a repetition takes a count of {MOST_REPEATS} at most")
        self.at += 1
        return int(token.text[:9])
