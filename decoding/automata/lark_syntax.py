"""Lark: texts of grammars to rules and terminals.

A text is read as Lark's contextual lexer would: terminals are greedy (one may not end
before a byte that extends it, or by which another terminal that may stand there reads
more), a literal wins over a pattern that reads the same text, `%ignore`d terminals may
stand behind each terminal and before the first one. Aliases,
`?`, `!` and priorities change trees, not languages: they are passed over. Refused, by
name: declared terminals (indentation), imports but of `common`, `%override`, `%extend`,
and patterns that `regex_syntax` cannot read.
"""

import ast
import re
from typing import NamedTuple

from decoding.automata import lark_terminals
from decoding.automata.grammar_rules import (
    EMPTY,
    Call,
    Choice,
    Expression,
    Grammar,
    Lexeme,
    Repeat,
    Sequence,
    Terminal,
)
from decoding.automata.grammar_syntax import DEEPEST, MOST_REPEATS, check_names
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


# Nodes of a parsed grammar: ("sequence" | "choice", items), ("repeat", item, low, high),
# ("name", name), ("use", template, arguments), ("string", text, is caseless),
# ("regexp", pattern), ("range", first, last).
_Node = tuple


class _Definition(NamedTuple):
    parameters: tuple[str, ...]
    node: _Node


def parse_rules(source: str, start: str) -> Grammar:
    """Read a Lark grammar; its start is "start" where `start` is no rule.

    Raises:
        ConstraintError: the text is no grammar, or asks for what is not supported.
    """
    reader = _Reader(source)
    reader.statements()
    if start not in reader.definitions and "start" in reader.definitions:
        start = "start"
    return _Converter(reader).grammar(start)


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


class _Reader:
    """A position in the tokens of a grammar, and what has been defined so far."""

    def __init__(self, source: str) -> None:
        self.tokens, self.at, self.depth = _tokens(source), 0, 0
        self.definitions: dict[str, _Definition] = {}
        self.ignored: list[_Node] = []
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
        self.definitions[name] = _Definition(tuple(parameters), self.choice())

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
            self.definitions[alias] = _Definition((), node)

    def choice(self) -> _Node:
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

    def sequence(self) -> _Node:
        items: list[_Node] = []
        while True:
            token = self.peek()
            if token.kind in ("name", "string", "regexp") or token.text in ("(", "["):
                items.append(self.repeated(self.atom()))
            elif self.take("->"):
                self.name()
            else:
                break
        return items[0] if len(items) == 1 else ("sequence", tuple(items))

    def atom(self) -> _Node:
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

    def repeated(self, item: _Node) -> _Node:
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


class _Converter:
    """From definitions to rules and terminals; only what the start needs."""

    def __init__(self, reader: _Reader) -> None:
        self.definitions, self.declared = reader.definitions, reader.declared
        self.ignored = reader.ignored
        self.rules: dict[str, Expression] = {}
        self.terminals: dict[str, Terminal] = {}

    def grammar(self, start: str) -> Grammar:
        check_names(dict.fromkeys(self.definitions, EMPTY), start, "lark")
        ignored = tuple(dict.fromkeys(self.lexeme(node).name for node in self.ignored))
        self.rule(start, ())
        return Grammar(self.rules, start, self.terminals, ignored)

    def rule(self, name: str, arguments: tuple[Expression, ...]) -> Call:
        """Make the rule, or the instance of a template, that `name` calls."""
        definition = self.definitions[name]
        if len(arguments) != len(definition.parameters):
            raise ConstraintError(
                f"lark grammar: {name} takes {len(definition.parameters)} arguments, "
                f"not {len(arguments)}"
            )
        called = name + (str(arguments) if arguments else "")
        if called not in self.rules:
            if len(self.rules) > 20 * len(self.definitions) + 200:
                raise ConstraintError(
                    f"lark grammar: the template {name} makes ever new rules: let it "
                    "call itself with its own arguments"
                )
            self.rules[called] = EMPTY
            names = dict(zip(definition.parameters, arguments))
            self.rules[called] = self.expression(definition.node, names)
        return Call(called)

    def expression(self, node: _Node, names: dict[str, Expression]) -> Expression:
        kind, *rest = node
        if kind in ("sequence", "choice"):
            items = tuple(self.expression(item, names) for item in rest[0])
            return Sequence(items) if kind == "sequence" else Choice(items)
        if kind == "repeat":
            return Repeat(self.expression(rest[0], names), rest[1], rest[2])
        if kind == "use":
            arguments = tuple(self.expression(item, names) for item in rest[1])
            self.defined(rest[0])
            return self.rule(rest[0], arguments)
        if kind == "name":
            if rest[0] in names:
                return names[rest[0]]
            self.defined(rest[0])
            if not _is_terminal(rest[0]):
                return self.rule(rest[0], ())
        if kind == "string" and not rest[0]:
            return EMPTY
        return self.lexeme(node)

    def defined(self, name: str) -> None:
        if name in self.definitions:
            return
        if name in self.declared:
            raise ConstraintError(
                f"lark grammar: {name} is declared, not defined: indentation and other "
                "terminals of a program's own lexer are not supported"
            )
        raise ConstraintError(
            f"lark grammar: {name!r} is not defined{hint(name, self.definitions)}"
        )

    def lexeme(self, node: _Node) -> Lexeme:
        """Make the terminal of a node; equal strings are one terminal."""
        inner, seen = node, []
        while inner[0] == "name" and inner[1] not in seen:
            self.defined(inner[1])
            seen.append(inner[1])
            inner = self.definitions[inner[1]].node
        if inner[0] == "string" and inner[1]:
            name = repr(inner[1]) + "i" * inner[2]
        else:
            name = node[1] if node[0] == "name" else f"/{self.regex(node, ())}/"
        if name not in self.terminals:
            if inner[0] == "string" and not inner[2]:
                self.terminals[name] = lark_terminals.literal(inner[1].encode())
            else:
                source = self.regex(node, ())
                is_literal = inner[0] == "string"
                self.terminals[name] = lark_terminals.pattern(name, source, is_literal)
        return Lexeme(name)

    def regex(self, node: _Node, within: tuple[str, ...]) -> str:
        """Return the regular expression of a terminal's definition."""
        kind, *rest = node
        if kind == "sequence":
            return "".join(self.regex(item, within) for item in rest[0])
        if kind == "choice":
            return f"(?:{'|'.join(self.regex(item, within) for item in rest[0])})"
        if kind == "repeat":
            high = "" if rest[2] is None else rest[2]
            return f"(?:{self.regex(rest[0], within)}){{{rest[1]},{high}}}"
        if kind == "string":
            text = re.escape(rest[0])
            return f"(?i:{text})" if rest[1] else f"(?:{text})"
        if kind == "regexp":
            return rest[0]
        if kind == "range":
            first, last = rest
            if len(last) != 1 or first > last:
                raise ConstraintError(
                    f"lark grammar: {first!r}..{last!r} is no range of characters"
                )
            return f"[{re.escape(first)}-{re.escape(last)}]"
        name = rest[0]
        if kind == "use" or not _is_terminal(name) or name in within:
            raise ConstraintError(
                f"lark grammar: a terminal calls {name!r}: it may call other terminals "
                "alone, and not itself"
            )
        self.defined(name)
        return self.regex(self.definitions[name].node, (*within, name))


def _is_terminal(name: str) -> bool:
    return name.lstrip("_")[:1].isupper()
