"""The tokens that spell bytes: the tokenizer's own, or the longest that fit."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

Spell = Callable[[str], Sequence[int]]


def of(tokenizer: Any) -> Spell | None:
    """Return how a tokenizer spells a text, without what it adds; None: it does not."""
    encode = getattr(tokenizer, "encode", None)
    return None if encode is None else functools.partial(encode, add_special=False)


class Speller:
    """Spells bytes by the tokens of a vocabulary."""

    def __init__(self, tokens: Sequence[bytes], spell: Spell | None = None) -> None:
        """Prepare the vocabulary.

        Args:
            tokens: the bytes of each token; b"" for what is not used.
            spell: the tokenizer's own way. Where it adds bytes, leaves some out, or
                there is none: the longest token that fits, again and again.
        """
        self.tokens, self.spell = tokens, spell
        # The first of equal tokens comes last, and stays.
        self._ids = dict(zip(reversed(tokens), range(len(tokens) - 1, -1, -1)))
        self._ids.pop(b"", None)
        self._longest = max(map(len, self._ids), default=0)

    def __call__(self, text: bytes) -> tuple[list[int], bytes]:
        """Return tokens, and the rest of the text, which no token begins."""
        try:
            ids = [] if self.spell is None else list(self.spell(text.decode()))
        except UnicodeDecodeError:
            ids = []
        pieces = [self.tokens[i] if i < len(self.tokens) else b"" for i in ids]
        if all(pieces) and b"".join(pieces) == text:
            return ids, b""
        ids, rest = [], text
        while rest:
            sizes = range(min(self._longest, len(rest)), 0, -1)
            size = next((n for n in sizes if rest[:n] in self._ids), 0)
            if not size:
                break
            ids.append(self._ids[rest[:size]])
            rest = rest[size:]
        return ids, rest
