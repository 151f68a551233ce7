"""A recogniser of grammars from their rules alone, and texts to ask it about."""

import random

import numpy as np

from decoding.automata.grammar_rules import (
    Call,
    Chars,
    Choice,
    Grammar,
    Lexeme,
    Repeat,
    Sequence,
    Text,
)


class Oracle:
    """Ends of every rule at every position, to a fixed point: any grammar, slowly.

    Terminals are read as the design has it: greedily, with literals before patterns
    that read the same text *where both may stand*; `literals` are those of the grammar.
    """

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar

    def accepts(self, data: bytes) -> bool:
        self.data, self.ends = data, {}
        size = -1
        while size != sum(map(len, self.ends.values())):
            size = sum(map(len, self.ends.values()))
            self.busy: set = set()
            whole = self.of(Call(self.grammar.start), self.skipped(0))
        return len(data) in whole

    def of(self, part, starts: set[int]) -> set[int]:
        if isinstance(part, Text):
            size = len(part.data)
            return {i + size for i in starts if self.data.startswith(part.data, i)}
        if isinstance(part, Chars):
            return {e for i in starts for e in self.character(part, i)}
        if isinstance(part, Sequence):
            for item in part.items:
                starts = self.of(item, starts)
            return starts
        if isinstance(part, Choice):
            return set().union(*(self.of(item, starts) for item in part.items))
        if isinstance(part, Repeat):
            return self.repeated(part, starts)
        if isinstance(part, Lexeme):
            return {e for i in starts for e in self.lexeme(part.name, i)}
        assert isinstance(part, Call)
        return set().union(*(self.call(part.name, i) for i in starts))

    def call(self, name: str, i: int) -> set[int]:
        known = self.ends.setdefault((name, i), set())
        if (name, i) not in self.busy:
            self.busy.add((name, i))
            known |= self.of(self.grammar.rules[name], {i})
        return known

    def character(self, part: Chars, i: int) -> set[int]:
        for size in range(1, 5):
            try:
                char = self.data[i : i + size].decode()
            except UnicodeDecodeError:
                continue
            if len(char) == 1 and any(a <= ord(char) < b for a, b in part.spans):
                return {i + size}
        return set()

    def repeated(self, part: Repeat, starts: set[int]) -> set[int]:
        for _ in range(part.low):
            starts = self.of(part.item, starts)
        ends, count = set(starts), part.low
        while starts and (part.high is None or count < part.high):
            starts = self.of(part.item, starts) - ends
            ends |= starts
            count += 1
        return ends

    def lexeme(self, name: str, i: int) -> set[int]:
        return {e for end in self.terminal(name, i) for e in self.skipped(end)}

    def terminal(self, name: str, i: int) -> set[int]:
        """Ends of a terminal at i: before a byte that does not extend it."""
        terminal = self.grammar.terminals[name]
        ends, state = set(), 0
        for end in range(i, len(self.data) + 1):
            longer = end < len(self.data) and terminal.next[state, self.data[end]] >= 0
            if terminal.accept[state] and not longer:
                ends.add(end)
            if not longer:
                break
            state = int(terminal.next[state, self.data[end]])
        return ends

    def skipped(self, i: int) -> set[int]:
        ends, todo = {i}, [i]
        while todo:
            at = todo.pop()
            for name in self.grammar.ignored:
                fresh = self.terminal(name, at) - ends
                ends |= fresh
                todo += fresh
        return ends


class Writer:
    """Random texts of a grammar, and mutations of them."""

    def __init__(self, grammar: Grammar, seed: int) -> None:
        self.grammar, self.random = grammar, random.Random(seed)
        self.depth = dict.fromkeys(grammar.rules, 10**6)
        for _ in grammar.rules:
            for name, rule in grammar.rules.items():
                self.depth[name] = min(self.depth[name], 1 + self.least(rule))

    def least(self, part) -> int:
        if isinstance(part, Call):
            return self.depth[part.name]
        if isinstance(part, Sequence):
            return max(map(self.least, part.items), default=0)
        if isinstance(part, Choice):
            return min(map(self.least, part.items))
        if isinstance(part, Repeat):
            return self.least(part.item) if part.low else 0
        return 0

    def text(self, depth: int = 12) -> bytes:
        return self.write(Call(self.grammar.start), depth)

    def write(self, part, depth: int) -> bytes:
        if isinstance(part, Text):
            return part.data
        if isinstance(part, Chars):
            return self.character(part)
        if isinstance(part, Sequence):
            return b"".join(self.write(item, depth) for item in part.items)
        if isinstance(part, Choice):
            options = [p for p in part.items if self.least(p) < depth]
            if not options:
                options = [min(part.items, key=self.least)]
            return self.write(self.random.choice(options), depth)
        if isinstance(part, Repeat):
            high = part.low + 3 if part.high is None else part.high
            many = depth > self.least(part.item)
            count = self.random.randint(
                part.low, min(high, part.low + 3) if many else part.low
            )
            return b"".join(self.write(part.item, depth) for _ in range(count))
        if isinstance(part, Lexeme):
            return self.terminal(part.name) + self.ignored()
        return self.write(self.grammar.rules[part.name], depth - 1)

    def character(self, part: Chars) -> bytes:
        for _ in range(20):
            low, high = self.random.choice(part.spans)
            point = self.random.randrange(low, min(high, low + 100))
            if not 0xD800 <= point < 0xE000:
                return chr(point).encode()
        return b""

    def terminal(self, name: str) -> bytes:
        terminal, state, data = self.grammar.terminals[name], 0, b""
        while len(data) < 40:
            bytes_ = np.flatnonzero(terminal.next[state] >= 0).tolist()
            if terminal.accept[state] and (not bytes_ or self.random.random() < 0.5):
                break
            if not bytes_:
                break
            byte = self.random.choice(bytes_)
            state = int(terminal.next[state, byte])
            data += bytes([byte])
        return data

    def ignored(self) -> bytes:
        if not self.grammar.ignored or self.random.random() < 0.5:
            return b""
        return self.terminal(self.random.choice(self.grammar.ignored))

    def mutated(self, data: bytes, other: bytes) -> bytes:
        """Change a text in one to three places; `other` is another text."""
        text, choice = bytearray(data), self.random
        for _ in range(choice.randint(1, 3)):
            at = choice.randrange(len(text) + 1)
            kind = choice.randrange(6)
            if kind == 0:
                del text[at : at + choice.randint(1, 3)]
            elif kind == 1:
                text[at:at] = bytes([choice.choice(other or b"x")])
            elif kind == 2:
                text[at : at + 1] = bytes([choice.choice(text or b"y")])
            elif kind == 3:
                text[at:at] = text[at : at + choice.randint(1, 6)]
            elif kind == 4:
                del text[at:]
            else:
                i = choice.randrange(len(other) + 1)
                text[at : at + 4] = other[i : i + 4]
        return bytes(text)

    def texts(self, count: int, longest: int = 80) -> list[bytes]:
        """Return `count` different texts, about half of them mutated."""
        texts: dict[bytes, None] = {}
        for turn in range(20 * count):
            text = self.text(3 + turn % 12)
            if len(text) <= longest:
                texts[text] = None
                texts[self.mutated(text, self.random.choice(list(texts)))] = None
            if len(texts) >= count:
                break
        return list(texts)
