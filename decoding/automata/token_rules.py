"""Context-free grammars over whole tokens, in a normal form.

    A -> B C      of nonterminals
    A -> token    from a set of tokens
    A =>* H       by rules of one symbol: `closure`

The terminals of a GBNF or EBNF text are tokens: a literal is one token of exactly its
bytes, a class one token that spells one of its characters. Nothing is said about texts
whose bytes other tokens spell.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from decoding.automata import grammar_rules, grammar_syntax
from decoding.automata.grammar_rules import Expression
from decoding.automata.lift import pack
from models.errors import ConstraintError

MOST = 1024  # nonterminals without a name in the text
LEAST = 16  # nonterminals, rules and classes of the arrays: small grammars are alike
Symbol = str | frozenset[int]  # a nonterminal, or a terminal: a set of tokens


class TokenRules(NamedTuple):
    """A grammar of N nonterminals and R rules of two symbols, and K classes of tokens.

    The three are powers of two, so that grammars of like size share a program. The last
    nonterminal has no text: rules that only fill up R are its own.
    """

    head: np.ndarray  # int32[R]
    left: np.ndarray  # int32[R]
    right: np.ndarray  # int32[R]
    closure: np.ndarray  # bool[N, N]: whether A derives H alone, itself among them
    tokens: np.ndarray  # uint32[N, W]: those that are a nonterminal's whole text
    classes: np.ndarray  # int32[V]: tokens that equal nonterminals derive
    derive: np.ndarray  # bool[K, N]: of each class, the nonterminals that derive it
    start: int
    empty: bool  # whether the empty text is one


class _Flat:
    """Rules whose right sides are tuples of symbols."""

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self.rules: dict[str, list[tuple[Symbol, ...]]] = {}
        self._fresh = itertools.count()
        self._spelled: dict[bytes, set[int]] = {}
        self._characters: dict[int, set[int]] = {}
        for i, token in enumerate(tokens):
            if token:
                self._spelled.setdefault(token, set()).add(i)
                text = token.decode("utf-8", "replace")
                if len(text) == 1 and text.encode() == token:
                    self._characters.setdefault(ord(text), set()).add(i)

    def name(self) -> str:
        number = next(self._fresh)
        if number >= MOST:
            raise ConstraintError(
                f"the grammar has more than {MOST} parts: repeat less often"
            )
        name = f" {number}"  # no name of a rule begins with a space
        self.rules[name] = []
        return name

    def add(self, name: str, expression: Expression) -> None:
        """Add the alternatives of a rule."""
        match expression:
            case grammar_rules.Choice(items):
                parts = items
            case _:
                parts = (expression,)
        self.rules.setdefault(name, []).extend(map(self.symbols, parts))

    def symbols(self, expression: Expression) -> tuple[Symbol, ...]:
        """Return an expression as symbols in a row."""
        match expression:
            case grammar_rules.Text(data):
                return (self._literal(data),) if data else ()
            case grammar_rules.Chars(spans):
                return (self._class(spans),)
            case grammar_rules.Sequence(items):
                return tuple(s for item in items for s in self.symbols(item))
            case grammar_rules.Call(name):
                return (name,)
            case grammar_rules.Choice():
                name = self.name()
                self.add(name, expression)
                return (name,)
            case grammar_rules.Repeat(item, low, high):
                return self._repeat(self.symbols(item), low, high)
        raise ConstraintError(
            f"{expression} is of Lark, which reads bytes: give GBNF, or EBNF"
        )

    def _repeat(
        self, item: tuple[Symbol, ...], low: int, high: int | None
    ) -> tuple[Symbol, ...]:
        if high is None:
            name = self.name()
            self.rules[name] = [(), (*item, name)]
            return (*item * low, name)
        rest: tuple[Symbol, ...] = ()
        for _ in range(high - low):
            name = self.name()
            self.rules[name] = [(), (*item, *rest)]
            rest = (name,)
        return (*item * low, *rest)

    def _literal(self, data: bytes) -> frozenset[int]:
        if data not in self._spelled:
            raise ConstraintError(
                f"no token spells the literal {data.decode('utf-8', 'replace')!r}: "
                "write it as literals of one token each"
            )
        return frozenset(self._spelled[data])

    def _class(self, spans: grammar_rules.Spans) -> frozenset[int]:
        of = (
            tokens
            for point, tokens in self._characters.items()
            if any(low <= point < high for low, high in spans)
        )
        if not (tokens := frozenset(t for every in of for t in every)):
            raise ConstraintError(
                f"no token is one character of {spans}: name other characters"
            )
        return tokens


def rules(
    source: str, tokens: Sequence[bytes], vocab_size: int, kind: str = "gbnf"
) -> TokenRules:
    """Read a grammar, whose first rule is `root`.

    Args:
        source: its text.
        tokens: the bytes of each token; b"" for specials and EOS, which no rule has.
        vocab_size: V.
        kind: "gbnf" or "ebnf".

    Raises:
        ConstraintError: the text is no grammar, a literal is no token, no text is
            finite, or it has more than `MOST` parts.
    """
    parsed = grammar_syntax.parse_rules(source, "root", kind)
    flat = _Flat(tokens)
    for name, expression in parsed.rules.items():
        flat.add(name, expression)
    pairs = _binary(flat)
    empty = _deriving(pairs, terminals=False)
    pairs = _without_empty(pairs, empty)
    pairs = _useful(pairs, "root")
    if not pairs["root"] and "root" not in empty:
        raise ConstraintError("the grammar has no finite text: give each rule an end")
    return _arrays(pairs, vocab_size, "root" in empty)


def _binary(flat: _Flat) -> dict[str, set[tuple[Symbol, ...]]]:
    """Return rules of at most two symbols; terminals stand alone."""
    out: dict[str, set[tuple[Symbol, ...]]] = {name: set() for name in flat.rules}
    known: dict[tuple[Symbol, ...], str] = {}

    def named(symbols: tuple[Symbol, ...]) -> Symbol:
        """Return a nonterminal whose only rule is `symbols`."""
        if len(symbols) == 1 and isinstance(symbols[0], str):
            return symbols[0]
        if symbols not in known:
            known[symbols] = flat.name()
            out[known[symbols]] = {short(symbols)}
        return known[symbols]

    def short(symbols: tuple[Symbol, ...]) -> tuple[Symbol, ...]:
        if len(symbols) < 2:
            return symbols
        half = len(symbols) // 2  # so that repeated items share their halves
        return named(symbols[:half]), named(symbols[half:])

    for name in list(flat.rules):
        for symbols in flat.rules[name]:
            out[name].add(short(symbols))
    return out


Pairs = dict[str, set[tuple[Symbol, ...]]]


def _deriving(pairs: Pairs, terminals: bool) -> set[Symbol]:
    """Return the nonterminals that derive a text; without terminals, the empty one."""
    found: set[Symbol] = set()
    good = lambda s: s in found or (terminals and isinstance(s, frozenset))
    while True:
        more = {
            name
            for name, sides in pairs.items()
            if name not in found and any(all(map(good, side)) for side in sides)
        }
        if not more:
            return found
        found |= more


def _without_empty(pairs: Pairs, empty: set[Symbol]) -> Pairs:
    """Return rules without the empty text, of which the others derive the same."""

    def kept(side: tuple[Symbol, ...]) -> Iterator[tuple[Symbol, ...]]:
        for drops in itertools.product(*((False, s in empty) for s in side)):
            yield tuple(s for s, drop in zip(side, drops) if not drop)

    return {
        name: {new for side in sides for new in kept(side) if new and new != (name,)}
        for name, sides in pairs.items()
    }


def _useful(pairs: Pairs, start: str) -> Pairs:
    """Return the rules that some text needs; those of the start come first."""
    ends = _deriving(pairs, terminals=True)
    is_good = lambda side: all(isinstance(s, frozenset) or s in ends for s in side)
    live = {name: set(filter(is_good, sides)) for name, sides in pairs.items()}
    reached, todo = {start: None}, [start]
    for name in todo:
        for side in sorted(live[name], key=repr):
            for symbol in side:
                if isinstance(symbol, str) and symbol not in reached:
                    reached[symbol] = None
                    todo.append(symbol)
    return {name: live[name] for name in reached}


def _arrays(pairs: Pairs, vocab_size: int, empty: bool) -> TokenRules:
    number = {name: i for i, name in enumerate(pairs)}
    size = _room(len(number) + 1)
    closure = np.eye(size, dtype=bool)
    held = np.zeros((size, vocab_size), bool)
    triples: set[tuple[int, int, int]] = set()
    for name, sides in pairs.items():
        for side in sides:
            if len(side) == 2:
                left, right = (number[str(s)] for s in side)
                triples.add((number[name], left, right))
            elif isinstance(side[0], frozenset):
                held[number[name], list(side[0])] = True
            else:
                closure[number[name], number[side[0]]] = True
    for middle in range(len(number)):
        closure |= closure[:, middle, None] & closure[middle]
    derived = np.zeros((vocab_size, size), bool)
    derived[held.any(0)] = (closure.astype(int) @ held[:, held.any(0)] > 0).T
    derive, classes = np.unique(derived, axis=0, return_inverse=True)
    room = _room(len(derive)) - len(derive)
    none = [(size - 1,) * 3] * (_room(len(triples)) - len(triples))
    head, left, right = np.array(sorted(triples) + none, np.int32).T
    return TokenRules(
        head,
        left,
        right,
        closure,
        pack(held),
        classes.reshape(-1).astype(np.int32),
        np.pad(derive, [(0, room), (0, 0)]),
        number["root"],
        empty,
    )


def _room(size: int) -> int:
    return max(LEAST, 1 << (size - 1).bit_length())
