"""Lark: texts of grammars to rules and terminals.

A text is read as Lark's contextual lexer would: terminals are greedy (one may not end
before a byte that extends it, or by which another terminal that may stand there reads
more), a literal wins over a pattern that reads the same text, `%ignore`d terminals may
stand behind each terminal and before the first one. Aliases,
`?`, `!` and priorities change trees, not languages: they are passed over. Refused, by
name: declared terminals (indentation), imports but of `common`, `%override`, `%extend`,
and patterns that `regex_syntax` cannot read.
"""

import re

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
from decoding.automata.grammar_syntax import check_names
from decoding.automata.lark_reader import Node, Reader
from models.errors import ConstraintError, hint


def parse_rules(source: str, start: str) -> Grammar:
    """Read a Lark grammar; its start is "start" where `start` is no rule.

    Raises:
        ConstraintError: the text is no grammar, or asks for what is not supported.
    """
    reader = Reader(source)
    reader.statements()
    if start not in reader.definitions and "start" in reader.definitions:
        start = "start"
    return _Converter(reader).grammar(start)


class _Converter:
    """From definitions to rules and terminals; only what the start needs."""

    def __init__(self, reader: Reader) -> None:
        self.definitions, self.declared = reader.definitions, reader.declared
        self.ignored = reader.ignored
        self.rules: dict[str, Expression] = {}
        self.instances: dict[tuple[str, tuple[Expression, ...]], str] = {}
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
        called = name
        if arguments:
            count = len(self.instances)
            called = self.instances.setdefault((name, arguments), f"{name}{{{count}}}")
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

    def expression(self, node: Node, names: dict[str, Expression]) -> Expression:
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

    def lexeme(self, node: Node) -> Lexeme:
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

    def regex(self, node: Node, within: tuple[str, ...]) -> str:
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
