"""Which tokens may follow a text, asked one by one on the host."""

from collections.abc import Callable, Mapping
from typing import Any

from decoding.automata import byte_machine, compiled
from decoding.automata.byte_machine import DEAD, ByteMachine, Config

Oracle = Callable[[tuple[int, ...], int], bool]
"""(text, token) -> whether some whole text begins with both; of an end-of-sequence
token, whether the text is whole."""

MOST = 2**14  # texts whose places are kept


class GrammarOracle:
    """A grammar as an oracle, with a stack of any height."""

    def __init__(
        self,
        grammar: Mapping[str, Any] | compiled.Grammar,
        tokenizer: Any,
        eos: tuple[int, ...],
        vocab_size: int,
    ) -> None:
        """Compile a grammar (`compiled.parse`).

        Raises:
            ConstraintError: it does not compile.
        """
        compiler = compiled.compiler(tokenizer, tuple(eos), vocab_size)
        self.machine: ByteMachine = compiler.lifted(compiled.parse(grammar)).machine
        self.tokens = compiler.vocabulary.tokens
        self.eos = frozenset(eos)
        self._places: dict[tuple[int, ...], Config] = {}

    def __call__(self, text: tuple[int, ...], token: int) -> bool:
        """Return whether `token` may follow `text`."""
        at = self._place(text)
        if token in self.eos:
            return byte_machine.is_final(self.machine, at)
        data = self.tokens[token] if token < len(self.tokens) else b""
        if not data:
            return False
        return byte_machine.read(self.machine, at, data).state != DEAD

    def _place(self, text: tuple[int, ...]) -> Config:
        if text not in self._places:
            at = Config(self.machine.start)
            if text:
                before, data = self._place(text[:-1]), self.tokens[text[-1]]
                at = byte_machine.read(self.machine, before, data)
            if len(self._places) >= MOST:
                self._places.clear()
            self._places[text] = at
        return self._places[text]
