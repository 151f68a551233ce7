"""Grammars by source, compiled and lifted to a vocabulary; kept in memory and on disk.

A lifted grammar depends on its source, its options, the tokens and the version of the
code. `grammars/` of the cache folder (`models.compile_cache`) keeps it for the next
process, so a schema is compiled once for a tokenizer.
"""

import collections
import dataclasses
import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from decoding.automata import (
    arena,
    byte_machine,
    forced_text,
    grammar_compiler,
    grammar_files,
    json_schema,
    lift,
    marker,
    rests,
    stackless,
    string_insides,
    token_spelling,
    token_trie,
)
from decoding.automata.byte_machine import DEAD, STRING, ByteMachine
from decoding.automata.finishing import FAR
from decoding.automata.lift import Lifted
from models import compile_cache, storage
from models.errors import ConstraintError, hint

VERSION = 6  # of the lifted form on disk
MOST_STEPS = 12_000_000  # of a grammar's walk over the vocabulary: some seconds
MOST = 512  # grammars in memory, least recently used first out
KINDS = ("json_schema", "gbnf", "lark", "ebnf", "regex")
_FIRST = {"lark": "start", "gbnf": "root", "ebnf": "root", "regex": ""}
SPACES = ("flexible", "compact")


@dataclass(frozen=True)
class Grammar:
    """A source of a grammar, and its options; see `parse`."""

    kind: str
    source: str
    start: str = ""  # the first rule; "": root, in Lark start
    whitespace: str = "flexible"
    strict_formats: bool = False
    after: str = ""
    canonical: bool = False

    def __str__(self) -> str:
        short = self.source if len(self.source) < 60 else self.source[:57] + "..."
        return f"{self.kind} {short!r}"


def parse(constraint: Mapping[str, Any] | Grammar) -> Grammar:
    """Read a grammar from a mapping with one source and options.

    Args:
        constraint: one of `json_schema` (a schema, or its text), `gbnf`, `lark`,
            `ebnf`, `regex` (texts), and `start` (the first rule), `whitespace`
            ("flexible", or "compact": none between JSON's tokens), `strict_formats`
            (every known format is held), `after` (any text until this one comes first),
            `canonical` (what must follow is spelled as the tokenizer would spell it).

    Raises:
        ConstraintError: no source, several, an unknown option, or a wrong value.
    """
    if isinstance(constraint, Grammar):
        return constraint
    if not isinstance(constraint, Mapping):
        raise ConstraintError(
            f"constraint={constraint!r}: give a mapping such as "
            "{'json_schema': {...}} or {'regex': '...'}"
        )
    options = {f.name: f.type for f in dataclasses.fields(Grammar)[2:]}
    kinds = [name for name in constraint if name in KINDS]
    for name in constraint:
        if name not in KINDS and name not in options:
            known = [*KINDS, *options]
            raise ConstraintError(
                f"constraint has {name!r}{hint(name, known)}; it takes one of "
                f"{list(KINDS)} and {list(options)}"
            )
    if len(kinds) != 1:
        raise ConstraintError(
            f"constraint has the sources {kinds}: give exactly one of {list(KINDS)}"
        )
    kind, source = kinds[0], constraint[kinds[0]]
    if kind == "json_schema":
        source = _schema_text(source)
    if not isinstance(source, str):
        raise ConstraintError(f"{kind} is {type(source).__name__}: give its text")
    rest = {name: value for name, value in constraint.items() if name != kind}
    grammar = Grammar(kind, source, **rest)
    if grammar.whitespace not in SPACES:
        raise ConstraintError(
            f"whitespace={grammar.whitespace!r}: use one of {list(SPACES)}"
        )
    for name in ("start", "after"):
        if not isinstance(getattr(grammar, name), str):
            raise ConstraintError(f"{name}={getattr(grammar, name)!r}: give a text")
    return grammar


def _schema_text(source: Any) -> str:
    """Return a schema as text, its keys in their order."""
    try:
        return source if isinstance(source, str) else json.dumps(source)
    except (TypeError, ValueError) as error:
        raise ConstraintError(f"json_schema is no JSON: {error}") from error


def machine(grammar: Grammar) -> ByteMachine:
    """Compile a grammar, less its marker, to a machine over bytes.

    Raises:
        ConstraintError: it is invalid, not supported, or accepts no text.
    """
    if grammar.kind == "json_schema":
        try:
            schema = json.loads(grammar.source)
        except ValueError as error:
            raise ConstraintError(f"{grammar} is no JSON: {error}") from error
        built = json_schema.compile_schema(
            schema, grammar.whitespace, grammar.strict_formats
        )
    else:
        built = grammar_compiler.compile_grammar(
            grammar.kind, grammar.source, grammar.start or _FIRST[grammar.kind]
        )
    if built.start == DEAD:
        raise ConstraintError(f"{grammar} accepts no text: change it")
    return built


class Compiler:
    """Grammars of one vocabulary: compiles them, and keeps what it has compiled."""

    def __init__(
        self,
        tokens: Sequence[bytes],
        eos: Sequence[int],
        vocab_size: int,
        spell: token_spelling.Spell | None = None,
    ) -> None:
        """Prepare the vocabulary.

        Args:
            tokens: the bytes of each token; b"" for specials.
            eos: the tokens that end a text.
            vocab_size: V.
            spell: see `token_spelling.Speller`.

        Raises:
            ConstraintError: no EOS within the vocabulary, or too many tokens.
        """
        if not eos or not all(0 <= end < vocab_size for end in eos):
            raise ConstraintError(
                "a grammar needs an end-of-sequence token to end a text, within the "
                f"vocabulary of {vocab_size}; pass such ids as eos, not {tuple(eos)}"
            )
        if len(tokens) > vocab_size:
            raise ConstraintError(
                f"the tokenizer has {len(tokens)} tokens and the model {vocab_size}: "
                "use the tokenizer of this model"
            )
        spelled = [b"" if i in eos else token for i, token in enumerate(tokens)]
        if (longest := max(map(len, spelled), default=0)) >= rests.LONGEST:
            raise ConstraintError(
                f"a token has {longest} bytes, of {rests.LONGEST - 1} at most: use "
                "another tokenizer"
            )
        self.vocabulary = arena.Vocabulary(spelled, vocab_size, tuple(eos))
        self.speller = token_spelling.Speller(spelled, spell)
        sizes = np.array([len(token) for token in spelled], np.int32)
        text = sizes.tobytes() + b"".join(spelled) + _spelling(spelled, spell)
        about = f"{VERSION} {vocab_size} {tuple(eos)}".encode()
        self.digest = hashlib.sha256(about + text).hexdigest()[:32]
        self._lifted: collections.OrderedDict[Grammar, Lifted] = (
            collections.OrderedDict()
        )

    @property
    def strings(self) -> arena.Strings:
        """STRING over the vocabulary, with every rest that JSON can go on with."""
        return self._json[0]

    @functools.cached_property
    def _json(self) -> tuple[arena.Strings, rests.Rests]:
        file = self._file("strings")
        if (kept := grammar_files.read_strings(file)) is not None:
            return kept
        anything = json_schema.compile_schema(True, "flexible", False)
        _, follow = rests.following(anything)
        begin = np.flatnonzero(anything.ends < 0).astype(np.int32)
        walk = token_trie.Walk(anything, self.trie, begin, follow)
        endings = rests.collect(anything, self.trie, walk)
        begin = begin[begin < STRING]
        walk = token_trie.Walk(anything, self.trie, begin, follow)
        size = self.vocabulary.size
        lifted = lift.lift(anything, self.trie, size, endings, begin, walk)
        width = lift.widths(self.trie, size, begin, walk)
        built = arena.Strings(lifted, width), endings
        grammar_files.write_strings(file, *built)
        return built

    @functools.cached_property
    def trie(self) -> token_trie.Trie:
        """The trie of all tokens."""
        file, tokens = self._file("trie"), self.vocabulary.tokens
        kept = grammar_files.read(file, grammar_files.TRIE)
        if kept is None:
            kept = token_trie.trie(tokens)
            grammar_files.write(file, kept._replace(strings=[]))
        return kept._replace(strings=tokens)

    @functools.cached_property
    def _insides(self) -> string_insides.Insides:
        file = self._file("insides")
        kept = grammar_files.read(file, grammar_files.INSIDES)
        if kept is None:
            anything = json_schema.compile_schema(True, "flexible", False)
            kept = string_insides.read(anything, self.trie)
            grammar_files.write(file, kept)
        return kept

    def lifted(self, grammar: Grammar) -> Lifted:
        """Return the lifted grammar, from memory, from disk, or compiled.

        Raises:
            ConstraintError: see `machine`; or the vocabulary cannot spell it.
        """
        if grammar not in self._lifted:
            file = self._file(repr(grammar))
            lifted = grammar_files.read(file, grammar_files.LIFTED)
            if lifted is None:
                lifted = self._compile(grammar)
                grammar_files.write(file, lifted)
            self._lifted[grammar] = lifted
            if len(self._lifted) > MOST:
                self._lifted.popitem(last=False)
        self._lifted.move_to_end(grammar)
        return self._lifted[grammar]

    def _compile(self, grammar: Grammar) -> Lifted:
        built = machine(grammar)
        vocabulary = self.vocabulary
        is_regular = grammar.kind == "regex"
        if not is_regular:
            single = token_trie.bytes_of(self.trie)
            byte_machine.check_spelled(built, single, str(grammar))
        if grammar.after:
            built = marker.after(built, grammar.after.encode())
        if is_regular:
            lifted = stackless.lift(built, vocabulary.tokens, vocabulary.size)
            if lifted.cost[built.start, 0] == FAR:
                raise ConstraintError(
                    f"{grammar} matches no sequence of this tokenizer's tokens: change "
                    "it, or use a tokenizer that has every byte"
                )
        else:
            lifted = self._lift(built, grammar.kind == "json_schema")
        jumps = forced_text.jumps(built, self.trie, self.speller)
        lifted = lifted._replace(jumps=jumps)
        return forced_text.only(lifted) if grammar.canonical else lifted

    def _lift(self, built: ByteMachine, is_json: bool) -> Lifted:
        begin = rests.origins(built)
        _, follow = rests.following(built)
        about = (built, self.trie, begin, follow, is_json, MOST_STEPS)
        walk = token_trie.Walk(*about)
        endings = self._json[1] if is_json else rests.collect(built, self.trie, walk)
        parts = (built, self.trie, self.vocabulary.size, endings, begin, walk)
        return lift.lift(*parts, self._insides if is_json else None)

    def _file(self, name: str) -> storage.Path | None:
        folder = compile_cache.folder()
        if folder is None:
            return None
        digest = hashlib.sha256(f"{self.digest} {name}".encode()).hexdigest()[:40]
        return folder / "grammars" / f"{digest}.npz"


def _spelling(tokens: Sequence[bytes], spell: token_spelling.Spell | None) -> bytes:
    """Describe how a tokenizer spells some of its own tokens in a row."""
    if spell is None:
        return b""
    some = b" ".join(tokens[:: max(1, len(tokens) // 512)])
    return np.array(spell(some.decode(errors="ignore")), np.int32).tobytes()


@functools.lru_cache(4)
def compiler(tokenizer: Any, eos: tuple[int, ...], vocab_size: int) -> Compiler:
    """Return the compiler of a tokenizer's vocabulary; the last four are kept."""
    tokens = tokenizer.token_bytes()[:vocab_size]
    return Compiler(tokens, eos, vocab_size, token_spelling.of(tokenizer))
