"""Matchers: which tokens may follow a text, computed on the host.

A matcher is a pure function of the text. What it remembers of a text (a parser's state)
is kept by prefix, least recently used first out, and rebuilt by replay. So it does not
matter in which order, or how often, a program asks: drafts that were rejected, rows
that end early and rounds that are run again leave no trace.
"""

import collections
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from decoding.automata.lift import pack
from decoding.automata.numbered import Numbers
from models.errors import ConstraintError

S = TypeVar("S")

MOST = 4096  # prefixes that a matcher remembers
ALL = np.uint32(0xFFFFFFFF)


class Matcher(Generic[S]):
    """What may follow a text; a subclass gives `begin`, `step` and `allowed`.

    A state `S` is never changed: `step` returns another one.
    """

    reads_prompt = False  # whether `begin` depends on the prompt

    def __init__(
        self, vocab_size: int, eos: Sequence[int] = (), most: int = MOST
    ) -> None:
        """Make a matcher without memory.

        Args:
            vocab_size: V.
            eos: allowed, alone, where nothing else is; none: such a text goes on as the
                model likes.
            most: prefixes to remember, 1 or more.
        """
        self.vocab_size = vocab_size
        self.eos = tuple(eos)
        self.replayed = 0  # tokens that were read
        self._most = most
        self._memory: collections.OrderedDict[tuple[bytes, bytes], S | None] = (
            collections.OrderedDict()
        )

    def begin(self, prompt: np.ndarray) -> S:
        """Return the state behind a prompt int32[P], before the text."""
        raise NotImplementedError

    def step(self, state: S, token: int) -> S | None:
        """Return the state behind one more token; None where it may not follow."""
        raise NotImplementedError

    def allowed(self, state: S) -> np.ndarray | None:
        """Return which tokens may follow, bool[V] or words uint32[W]; None: all."""
        raise NotImplementedError

    def is_over(self, state: S) -> bool:
        """Return whether the text may end here."""
        return True

    def accepts(self, tokens: Sequence[int], prompt: Sequence[int] = ()) -> bool:
        """Return whether `tokens`, less the EOS at their end, are a whole text."""
        text = list(tokens)
        if text and text[-1] in self.eos:
            text.pop()
        state = self.state(np.asarray(text, np.int32), np.asarray(prompt, np.int32))
        return state is not None and self.is_over(state)

    def words(
        self,
        tokens: np.ndarray,
        nodes: np.ndarray,
        parents: np.ndarray,
        at: np.ndarray | None = None,
        prompt: np.ndarray | None = None,
    ) -> np.ndarray:
        """Return the words of what may follow each node of a tree, uint32[N, W].

        Behind a text that may not be, everything may follow: only a node that the
        target never reaches has such a text.

        Args:
            tokens: int32[T], the text up to node 0, which is its last token or, where
                it is empty, the prompt's.
            nodes: int32[M], the tree's tokens; that of node 0 is not read.
            parents: int32[M]; a parent comes before its children.
            at: int32[N], nodes; None: all of them.
            prompt: int32[P]; None: an empty one.
        """
        before = np.zeros(0, np.int32) if prompt is None else prompt
        states = {0: self.state(tokens, before)}
        texts = {0: np.ascontiguousarray(tokens, np.int32).tobytes()}
        wanted = range(len(nodes)) if at is None else at.tolist()
        root = self._root(before)

        def reach(node: int) -> None:
            path = []
            while node not in states:
                path.append(node)
                node = int(parents[node])
            for child in reversed(path):
                token = np.int32(nodes[child])
                texts[child] = texts[node] + token.tobytes()
                key = (root, texts[child])
                states[child] = self._after(key, states[node], int(token))
                node = child

        for node in wanted:
            reach(node)
        return np.stack([self._words(states[node]) for node in wanted])

    def state(self, tokens: np.ndarray, prompt: np.ndarray) -> S | None:
        """Return the state behind a text, from the longest prefix in memory."""
        text = np.ascontiguousarray(tokens, np.int32).tobytes()
        root, size = self._root(prompt), len(text)
        while size and (root, text[:size]) not in self._memory:
            size -= 4
        if (root, text[:size]) not in self._memory:
            self._keep((root, b""), self.begin(prompt))
        state = self._memory[root, text[:size]]
        self._memory.move_to_end((root, text[:size]))
        for end in range(size + 4, len(text) + 1, 4):
            state = self._after((root, text[:end]), state, int(tokens[end // 4 - 1]))
        return state

    def _root(self, prompt: np.ndarray) -> bytes:
        return prompt.astype(np.int32).tobytes() if self.reads_prompt else b""

    def _after(self, key: tuple[bytes, bytes], state: S | None, token: int) -> S | None:
        if key in self._memory:
            self._memory.move_to_end(key)
            return self._memory[key]
        after = None if state is None else self.step(state, token)
        self.replayed += 1
        self._keep(key, after)
        return after

    def _keep(self, key: tuple[bytes, bytes], state: S | None) -> None:
        self._memory[key] = state
        if len(self._memory) > self._most:
            self._memory.popitem(last=False)

    def _words(self, state: S | None) -> np.ndarray:
        allowed = None if state is None else self.allowed(state)
        if allowed is None:
            return np.full(-(-self.vocab_size // 32), ALL, np.uint32)
        words = pack(allowed) if allowed.dtype == bool else allowed
        if not words.any():
            ends = np.zeros(self.vocab_size, bool)
            ends[list(self.eos)] = True
            words = pack(ends if self.eos else ~ends)
        return words


class Predicate(Matcher[np.ndarray]):
    """A Python function of the tokens so far.

    It returns the ids that may follow, or bool[V], or None for all. A text may end
    wherever an EOS is among them.
    """

    def __init__(
        self,
        predicate: Callable[[np.ndarray], Any],
        vocab_size: int,
        eos: Sequence[int] = (),
        reads_prompt: bool = False,
    ) -> None:
        """Wrap `predicate(tokens int32[T])`, a pure function.

        Args:
            predicate: gets the text, behind its prompt if it `reads_prompt`.
            vocab_size: V.
            eos: see `Matcher`.
            reads_prompt: whether `tokens` begin with the prompt's.
        """
        super().__init__(vocab_size, eos)
        self.predicate = predicate
        self.reads_prompt = reads_prompt

    def begin(self, prompt: np.ndarray) -> np.ndarray:
        """Return the prompt, or an empty text."""
        return prompt if self.reads_prompt else np.zeros(0, np.int32)

    def step(self, state: np.ndarray, token: int) -> np.ndarray:
        """Return the text with one more token."""
        return np.append(state, np.int32(token))

    def allowed(self, state: np.ndarray) -> np.ndarray | None:
        """Ask the predicate.

        Raises:
            ConstraintError: an id outside the vocabulary, or bools of another length.
        """
        answer = self.predicate(state)
        if answer is None:
            return None
        values = np.asarray(answer)
        if values.dtype == bool:
            if values.shape != (self.vocab_size,):
                raise ConstraintError(
                    f"a predicate returned bool{list(values.shape)}: return one bool "
                    f"for each of the {self.vocab_size} tokens, or their ids"
                )
            return values
        ids = values.reshape(-1).astype(np.int64)
        if len(ids) and not 0 <= ids.min() <= ids.max() < self.vocab_size:
            raise ConstraintError(
                f"a predicate returned the ids {ids.min()} to {ids.max()}: return ids "
                f"below {self.vocab_size}"
            )
        mask = np.zeros(self.vocab_size, bool)
        mask[ids] = True
        return mask

    def is_over(self, state: np.ndarray) -> bool:
        """Return whether an EOS may follow."""
        allowed = self.allowed(state)
        return (
            allowed is None or not allowed.any() or bool(allowed[list(self.eos)].any())
        )


class Matched(NamedTuple):
    """A stream of words that the host computes: what may follow the text at each node.

    A transform that reads it has `(name, state -> int32[2])` in
    `LogitsTransform.numbers`: the number of the row's matcher, and the length of the
    row's prompt.
    """

    words: int  # W of uint32[B, N, W]


NUMBERS: Numbers[Matcher] = Numbers()  # of none: everything may follow


def answer(
    width: int,
    numbers: np.ndarray,
    tokens: np.ndarray,
    length: np.ndarray,
    nodes: np.ndarray,
    parents: np.ndarray,
    at: np.ndarray,
) -> np.ndarray:
    """Return the words of all rows' nodes, uint32[B, N, W]; all ones where none ask.

    Args:
        width: W.
        numbers: int32[B, 2], each row's matcher and the length of its prompt.
        tokens: int32[B, T].
        length: int32[B], of the text up to node 0, prompt included.
        nodes: int32[B, M], the tokens of each row's tree.
        parents: int32[B, M].
        at: int32[B, N], nodes; -1: none.
    """
    words = np.full((*at.shape, width), ALL, np.uint32)
    for row, (name, prompt) in enumerate(numbers.tolist()):
        matcher, asked = NUMBERS.get(name), np.flatnonzero(at[row] >= 0)
        if matcher is None or not len(asked):
            continue
        text = tokens[row, prompt : length[row]]
        trees = nodes[row], parents[row], at[row, asked]
        words[row, asked] = matcher.words(text, *trees, tokens[row, :prompt])
    return words
