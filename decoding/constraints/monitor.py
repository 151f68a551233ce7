"""Monitor-guided decoding: after a trigger, only identifiers that an analysis offers.

Agrawal, Kanade, Goyal, Lahiri, Rajamani, *Monitor-Guided Decoding of Code LMs with
Static Analysis of Repository Context*, NeurIPS 2023, arXiv 2306.10763, section 3, with
the official code's dereferences monitor (microsoft/monitors4codegen at 5003004).

A monitor watches the text. Where it ends with a trigger (".", an object's dereference),
a provider, such as a language server, is asked which identifiers are legal there. If it
offers any, the monitor is *constrained* by them; else, and everywhere else, it masks
nothing (state S0). With the legal suffixes S, constrained,

    token t is allowed   if t is a prefix of some s in S
                         or some s in S is a proper prefix of t, and t[|s|] breaks
    after t              S0 if t has a breaking character,
                         else {s[|t|:] : t is a prefix of s}

A character breaks if it cannot continue an identifier. So "abc(" is allowed behind
"abc", and a token that ends an identifier and begins the next dereference asks anew.

As in the paper: in S0 a token that holds a trigger and goes on (".foo") is not masked.
Deviations: text and tokens are bytes, so a token may hold half a character; the end of
sequence is allowed in S0 and behind a whole identifier; what the official code asks a
language server for (twice, with closing brackets put in, and without keywords) is the
provider's business.

Cost a round: as `constraints/host`; and a call of the provider at each trigger.
"""

import bisect
import string
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from decoding import base
from decoding.automata import matchers
from decoding.catalogue import Card
from decoding.constraints import host
from models.errors import ConstraintError

LETTERS = string.ascii_letters + string.digits + "_$"


def stub(text: str) -> list[str]:
    """Offer two identifiers after every trigger, and none after two of them."""
    return [] if text.endswith("gg") else ["abc", "abd"]


CARD = Card(
    paper="Monitor-guided decoding, arXiv 2306.10763",
    guarantee=base.LAW,
    family="grammar",
    data=("provider", "triggers", "letters"),
    needs=("tokenizer", "eos", "vocab_size"),
    examples={"provider": stub, "triggers": ("g",), "letters": "abcde"},
    sources=("agrawal2023monitor",),
)


class Watched(NamedTuple):
    """A monitor's state."""

    text: bytes  # prompt and text
    legal: tuple[bytes, ...] | None = None  # the suffixes; None: S0


class Monitor(matchers.Matcher[Watched]):
    """A monitor of one provider."""

    reads_prompt = True

    def __init__(
        self,
        provider: Callable[[str], Iterable[str]],
        tokens: Sequence[bytes],
        eos: Sequence[int],
        vocab_size: int,
        triggers: Sequence[str] = (".",),
        letters: str = LETTERS,
    ) -> None:
        """Prepare the tokens.

        Args:
            provider: (prompt and text up to a trigger) -> the identifiers that are
                legal behind it; none: nothing is masked. A pure function.
            tokens: the bytes of each token.
            eos: ids of the end-of-sequence tokens.
            vocab_size: V.
            triggers: texts, at whose end the provider is asked.
            letters: the ASCII characters that an identifier may go on with; all others
                break it. Characters beyond ASCII never do.

        Raises:
            ConstraintError: no trigger, or an empty one.
        """
        super().__init__(vocab_size, eos)
        if not triggers or not all(triggers):
            raise ConstraintError(f"triggers={triggers!r}: give texts such as ('.',)")
        self.provider = provider
        self.triggers = tuple(trigger.encode() for trigger in triggers)
        self.tokens = [b"" if i in eos else t for i, t in enumerate(tokens)]
        self.breaks = frozenset(range(128)) - frozenset(letters.encode())
        ids = sorted(range(len(self.tokens)), key=self.tokens.__getitem__)
        self._ids = np.asarray(ids, np.int32)
        self._sorted = [self.tokens[i] for i in ids]
        self._breaking = np.zeros(vocab_size, bool)
        first = [bool(t) and t[0] in self.breaks for t in self.tokens]
        self._breaking[: len(first)] = first

    def begin(self, prompt: np.ndarray) -> Watched:
        """Return the state behind a prompt, which may end with a trigger."""
        return self._asked(b"".join(self._bytes(int(token)) for token in prompt))

    def step(self, state: Watched, token: int) -> Watched | None:
        """Return the state behind one more token, or None."""
        if token in self.eos:
            return Watched(state.text) if self.is_over(state) else None
        data = self._bytes(token)
        text = state.text + data
        if state.legal is None:
            return self._asked(text) if data else state
        if not data or not any(self._fits(suffix, data) for suffix in state.legal):
            return None
        if not self.breaks.isdisjoint(data):
            return self._asked(text)
        legal = (s[len(data) :] for s in state.legal if s.startswith(data))
        return Watched(text, tuple(legal))

    def allowed(self, state: Watched) -> np.ndarray | None:
        """Return the tokens that agree with a legal suffix; None in S0."""
        if state.legal is None:
            return None
        mask = np.zeros(self.vocab_size, bool)
        for suffix in state.legal:
            for size in range(1, len(suffix) + 1):
                first = suffix[:size]
                low = bisect.bisect_left(self._sorted, first)
                mask[self._ids[low : bisect.bisect_right(self._sorted, first)]] = True
            if not suffix:  # much of the vocabulary goes on with a whole identifier
                mask |= self._breaking
                continue
            low = bisect.bisect_right(self._sorted, suffix)
            while low < len(self._sorted) and self._sorted[low].startswith(suffix):
                mask[self._ids[low]] |= self._fits(suffix, self._sorted[low])
                low += 1
        mask[list(self.eos)] = self.is_over(state)
        return mask

    def is_over(self, state: Watched) -> bool:
        """Return whether the text is not within an identifier."""
        return state.legal is None or b"" in state.legal

    def _fits(self, suffix: bytes, data: bytes) -> bool:
        if suffix.startswith(data):
            return True
        return data.startswith(suffix) and data[len(suffix)] in self.breaks

    def _bytes(self, token: int) -> bytes:
        return self.tokens[token] if token < len(self.tokens) else b""

    def _asked(self, text: bytes) -> Watched:
        """Return S0, or where the text ends with a trigger the provider's answer."""
        if not text.endswith(self.triggers):
            return Watched(text)
        offered = self.provider(text.decode("utf-8", errors="replace"))
        legal = tuple(dict.fromkeys(name.encode() for name in offered if name))
        return Watched(text, legal or None)


def transform(
    provider: Callable[[str], Iterable[str]],
    tokenizer: Any,
    eos: tuple[int, ...],
    vocab_size: int,
    triggers: Sequence[str] = (".",),
    letters: str = LETTERS,
) -> base.LogitsTransform:
    """Restrict what follows a trigger to identifiers that the provider offers.

    Args:
        provider: see `Monitor`.
        tokenizer: `tokenizer.token_bytes()` gives the bytes of every id.
        eos: ids of the end-of-sequence tokens.
        vocab_size: V.
        triggers: texts, at whose end the provider is asked.
        letters: the ASCII characters that an identifier may go on with.

    Raises:
        ConstraintError: no trigger, or an empty one.
        MethodError: several processes decode together.
    """
    tokens = tokenizer.token_bytes()[:vocab_size]
    monitor = Monitor(provider, tokens, eos, vocab_size, triggers, letters)
    return host.transform((monitor,), eos, vocab_size, stream="host/monitor")
