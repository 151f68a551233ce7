"""The text of a row as it grows, in pieces that no later token changes."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax

from decoding.serving import requests, results


class Piece(NamedTuple):
    """The text that a row gained since its last piece."""

    prompt: int  # index in `prompts`
    sample: int  # 0 .. n - 1
    text: str  # whole characters, nothing of a stop string; "" without a tokenizer
    tokens: list[int]
    finish_reason: str | None  # None until the row's last piece


class Row:
    """The text of one row of a stream."""

    def __init__(self, lm: Any, end: int, ends: requests.Ends):
        self.lm, self.end, self.ends = lm, end, ends
        self.decoder = None if lm.tokenizer is None else lm.tokenizer.stream()
        self.tokens: list[int] = []
        self.text, self.sent = "", 0
        self.reason: str | None = None

    def push(self, new: list[int], done: bool) -> str:
        """Read `new` tokens; return the text that is decided since the last call."""
        self.end += len(new)
        self.tokens += new
        if done:
            self.reason = requests.finish_reason(self.lm, self.tokens, self.ends)
        if self.decoder is None:
            return ""
        if done:
            self.text = requests.text_of(self.lm, self.tokens, self.ends)
            return self.text[self.sent :]
        eos = self.lm.model.config.eos
        self.text += "".join(self.decoder.push(t) for t in new if t not in eos)
        decided = len(self.text) - undecided(self.text, self.ends.strings)
        start, self.sent = self.sent, max(self.sent, decided)
        return self.text[start : self.sent]


def undecided(text: str, stops: Sequence[str]) -> int:
    """Count the last characters of `text` that may become part of a stop string."""
    longest = max((len(stop) - 1 for stop in stops), default=0)
    for size in range(min(longest, len(text)), 0, -1):
        if any(stop.startswith(text[-size:]) for stop in stops):
            return size
    return 0


def pieces(call: Any) -> Iterator[Piece]:
    """Run the rounds of a started call of `decoding.api`; yield what they commit."""
    lm, asked, state = call.lm, call.requests, call.state
    rows = [Row(lm, len(p), end) for p, end in zip(asked.rows, asked.ends)]
    while not all(row.reason for row in rows):
        state, _ = call.engine.step(call.params, state)
        results.check_pool(state)
        tokens, ends, done = jax.device_get((state.tokens, state.length, state.done))
        for i, row in enumerate(rows):
            if row.reason:
                continue
            new = tokens[i, row.end : ends[i]].tolist()
            text = row.push(new, bool(done[i]))
            if new or row.reason:
                yield Piece(i // asked.n, i % asked.n, text, new, row.reason)
