"""Grammars by llguidance, on the host.

llguidance (the extra `constraints`; MIT) parses by an Earley parser over derivatives of
regexes, so it holds ambiguous and left-recursive grammars, which one stack cannot.

Its *mask* is narrower than its language: where bytes are forced, only the canonical
token of them is allowed, though `validate_tokens` would take others. So texts under it
differ from those of `constraints/grammar`, which allows every spelling.
"""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from decoding.automata import matchers, token_spelling
from decoding.automata.compiled import Grammar
from models.errors import ConstraintError

REMEDY = "pip install 'decodax[constraints]' for grammars on the host"


class LLGuidance(matchers.Matcher[Any]):
    """A grammar by llguidance; a state is an `LLMatcher`, copied before each token."""

    def __init__(
        self, grammar: Grammar, tokenizer: Any, eos: Sequence[int], vocab_size: int
    ) -> None:
        """Compile a grammar.

        Args:
            grammar: a JSON schema, a regex, GBNF, or Lark in llguidance's dialect.
            tokenizer: `token_bytes()` gives the bytes of every id.
            eos: ids of the end-of-sequence tokens.
            vocab_size: V.

        Raises:
            ConstraintError: llguidance is absent, or refuses the grammar.
        """
        super().__init__(vocab_size, eos)
        library = _library()
        text = _text(library, grammar)
        self._first = library.LLMatcher(_tokens(tokenizer, self.eos, vocab_size), text)
        if self._first.is_error():
            reason = self._first.get_error().strip().splitlines()[0]
            raise ConstraintError(f"llguidance refuses {grammar}: {reason}")
        if not self.allowed(self._first).any():
            raise ConstraintError(f"{grammar}: no token of this model begins a text")

    def begin(self, prompt: np.ndarray) -> Any:
        """Return the matcher before the text."""
        return self._first

    def step(self, state: Any, token: int) -> Any:
        """Return a copy of the matcher behind one more token, or None."""
        after = state.deep_copy()
        return after if after.consume_token(token) else None

    def allowed(self, state: Any) -> np.ndarray:
        """Return llguidance's mask as words uint32[W]; none where no token goes on.

        Raises:
            ConstraintError: the parser met one of its limits.
        """
        words = np.zeros((1, -(-self.vocab_size // 32)), np.int32)
        _library().numpy.fill_next_token_bitmask(state, words)
        if state.is_error():
            reason = state.get_error().splitlines()[0]
            if not reason.startswith("NoExtension"):
                raise ConstraintError(f"llguidance stopped: {reason}")
            words[:] = 0
        return words[0].view(np.uint32)

    def is_over(self, state: Any) -> bool:
        """Return whether the text is a whole one."""
        return bool(state.is_accepting())


@functools.lru_cache(64)  # so that calls share what a matcher remembers
def matcher(
    grammar: Grammar, tokenizer: Any, eos: tuple[int, ...], vocab_size: int
) -> LLGuidance:
    """Return a grammar's matcher; see `LLGuidance`."""
    return LLGuidance(grammar, tokenizer, eos, vocab_size)


def _library() -> Any:
    try:
        import llguidance
        import llguidance.numpy
    except ImportError as error:
        raise ConstraintError(f"llguidance cannot be imported: {REMEDY}") from error
    return llguidance


def _text(library: Any, grammar: Grammar) -> str:
    """Return a grammar in llguidance's own form."""
    if grammar.after:
        raise ConstraintError(f"{grammar}: after={grammar.after!r} needs the device")
    if grammar.start not in ("", "start" if grammar.kind == "lark" else "root"):
        raise ConstraintError(
            f"{grammar}: start={grammar.start!r} needs the device: name the first rule "
            "start in Lark and root in GBNF"
        )
    forms = library.LLMatcher
    if grammar.kind == "json_schema":
        spaces = {"whitespace_flexible": grammar.whitespace == "flexible"}
        return forms.grammar_from_json_schema(grammar.source, overrides=spaces)
    if grammar.kind == "regex":
        return forms.grammar_from_regex(grammar.source)
    if grammar.kind == "lark":
        return forms.grammar_from_lark(grammar.source)
    if grammar.kind == "gbnf":
        from llguidance import gbnf_to_lark

        try:
            source = gbnf_to_lark.gbnf_to_lark(grammar.source)
        except Exception as error:  # it raises a bare Exception
            raise ConstraintError(f"llguidance refuses {grammar}: {error}") from error
        return forms.grammar_from_lark(source)
    raise ConstraintError(f"{grammar} needs the device: llguidance has no EBNF")


class _Wrapped:
    """A tokenizer in the form that llguidance reads."""

    bos_token_id = None

    def __init__(self, tokenizer: Any, eos: tuple[int, ...], vocab_size: int) -> None:
        spelled = tokenizer.token_bytes()[:vocab_size]
        spelled += [b""] * (vocab_size - len(spelled))
        silent = {i for i, token in enumerate(spelled) if not token} | set(eos)
        self.tokens = [
            b"<%d>" % i if i in silent else token for i, token in enumerate(spelled)
        ]
        self.special_token_ids = sorted(silent)
        self.eos_token_id = eos[0]
        used = [b"" if i in silent else token for i, token in enumerate(spelled)]
        self._speller = token_spelling.Speller(used, token_spelling.of(tokenizer))

    def __call__(self, data: bytes) -> list[int]:
        """Spell bytes; what no token spells is left out."""
        ids = []
        while data:
            more, rest = self._speller(data)
            ids += more
            data = rest[1:]
        return ids


@functools.lru_cache(4)
def _tokens(tokenizer: Any, eos: tuple[int, ...], vocab_size: int) -> Any:
    library = _library()
    wrapped = library.TokenizerWrapper(_Wrapped(tokenizer, eos, vocab_size))
    return library.LLTokenizer(wrapped, n_vocab=vocab_size, eos_token=list(eos))
