"""Engines of constrained decoding behind one interface, each imported when it is used.

An engine compiles a schema to a session, which gives the mask of the next token and
reads tokens. `decodax, device` is this project's own form, `decodax, host` llguidance
through `decoding.constraints.host`'s matcher; the others are called as they are.
"""

import functools
import importlib.metadata
import importlib.util
import json
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from decoding.automata import arena, compiled, llguidance_matcher, machine
from models.errors import ConfigError, ConstraintError

DEPTH = 32  # calling states of the device form
MOST_TOKENS = 2**30  # no limit on a text


class Vocabulary(NamedTuple):
    """Tokens, and where an engine finds the tokenizer.

    Attributes:
        tokens: the bytes of each id; b"" for specials.
        eos: ids that end a text.
        file: a tokenizer.json; "": single bytes.
    """

    tokens: tuple[bytes, ...]
    eos: tuple[int, ...]
    file: str = ""

    def token_bytes(self, size: int = 0) -> list[bytes]:
        """Return the bytes of each id."""
        return list(self.tokens)


BYTES = Vocabulary((b"", *(bytes([i]) for i in range(256))), (0,))


class Session(Protocol):
    """A text under one schema, at its beginning."""

    def restarted(self) -> "Session":
        """Return a session at the text's beginning."""

    def mask(self) -> np.ndarray:
        """Return which tokens may follow, as words uint32[W]."""

    def commit(self, token: int) -> bool:
        """Read a token; return False if it may not follow."""

    def is_over(self) -> bool:
        """Return whether the text may end."""


class Engine(Protocol):
    """A compiler of schemas for one vocabulary."""

    def compile(self, schema: str) -> Any:
        """Return a session.

        Raises:
            ConstraintError: the engine refuses the schema.
        """


def is_installed(package: str) -> bool:
    """Return whether a package can be imported; this project always can."""
    return not package or importlib.util.find_spec(package) is not None


def version(package: str) -> str:
    """Return a package's version; "" for this project's own forms."""
    return importlib.metadata.version(package.replace("_", "-")) if package else ""


def has(words: np.ndarray, token: int) -> bool:
    """Return whether a token is in the words uint32[W] of a mask."""
    return bool(int(words[token >> 5]) >> (token & 31) & 1)


_allowed = jax.jit(machine.allowed)
_advanced = jax.jit(machine.advance)
_final = jax.jit(machine.is_final)


class Device:
    """This project's automata; `mask` and `commit` are called from the host here."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        about = list(vocabulary.tokens), vocabulary.eos, len(vocabulary.tokens)
        self.compiler = compiled.Compiler(*about)
        self.compile("{}")  # what all schemas share is made with the first one

    def compile(self, schema: str) -> "DeviceSession":
        """Compile a schema, lift it and make its tables."""
        lifted = self.compiler.lifted(compiled.Grammar("json_schema", schema))
        if (need := int(lifted.machine.need[lifted.machine.start])) > DEPTH:
            raise ConstraintError(f"{need} calling states, of {DEPTH}")
        held = arena.Arena(self.compiler.vocabulary, self.compiler.strings)
        start = held.add(lifted)
        return DeviceSession(jax.tree.map(jnp.asarray, held.tables()), start)


class DeviceSession:
    """A row of the device's tables."""

    def __init__(self, tables: Any, start: int) -> None:
        self.tables, self.start = tables, start
        self.row = machine.init(start, MOST_TOKENS, DEPTH, False)

    def restarted(self) -> "DeviceSession":
        return DeviceSession(self.tables, self.start)

    def mask(self) -> np.ndarray:
        allowed = np.asarray(_allowed(self.tables, self.row))
        return np.packbits(
            np.pad(allowed, (0, -len(allowed) % 32)), bitorder="little"
        ).view(np.uint32)

    def commit(self, token: int) -> bool:
        self.row = _advanced(self.tables, self.row, jnp.int32(token))
        return int(self.row.state) != machine.DEAD

    def is_over(self) -> bool:
        return bool(_final(self.tables, self.row))


class Host:
    """llguidance through this project's matcher, which copies it before each token."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        file, self.eos = vocabulary.file, vocabulary.eos
        self.tokenizer = tokenizer(file, self.eos) if file else vocabulary
        self.size = len(vocabulary.tokens)
        self.compile("{}")

    def compile(self, schema: str) -> "HostSession":
        grammar = compiled.Grammar("json_schema", schema)
        about = self.tokenizer, self.eos, self.size
        return HostSession(llguidance_matcher.LLGuidance(grammar, *about))


class HostSession:
    """A text under a matcher of the host."""

    def __init__(self, matcher: Any) -> None:
        self.matcher = matcher
        self.state = matcher.begin(np.zeros(0, np.int32))

    def restarted(self) -> "HostSession":
        return HostSession(self.matcher)

    def mask(self) -> np.ndarray:
        return self.matcher.allowed(self.state)

    def commit(self, token: int) -> bool:
        after = self.matcher.step(self.state, token)
        self.state = self.state if after is None else after
        return after is not None

    def is_over(self) -> bool:
        return self.matcher.is_over(self.state)


class _Single:
    """Single bytes, in the form that llguidance reads."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.tokens = [token or b"<end>" for token in vocabulary.tokens]
        self.eos_token_id = vocabulary.eos[0]
        self.special_token_ids = list(vocabulary.eos)

    def __call__(self, data: bytes) -> list[int]:
        return [byte + 1 for byte in data]


class LLGuidance:
    """llguidance, called directly, with the tokenizer's own spelling."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        import llguidance
        import llguidance.numpy

        self.library, size = llguidance, len(vocabulary.tokens)
        if vocabulary.file:
            self.tokens = llguidance.LLTokenizer(
                vocabulary.file, n_vocab=size, eos_token=list(vocabulary.eos)
            )
        else:
            wrapped = llguidance.TokenizerWrapper(_Single(vocabulary))
            self.tokens = llguidance.LLTokenizer(
                wrapped, n_vocab=size, eos_token=list(vocabulary.eos)
            )
        self.words = -(-size // 32)

    def ids(self, text: bytes) -> list[int]:
        """Spell bytes in the vocabulary of single bytes."""
        return [byte + 1 for byte in text]

    def compile(self, schema: str) -> "LLSession":
        forms = self.library.LLMatcher
        spaces = {"whitespace_flexible": True}
        try:
            text = forms.grammar_from_json_schema(schema, overrides=spaces)
            matcher = forms(self.tokens, text, log_level=0)
        except ValueError as error:
            raise ConstraintError(str(error)) from error
        if matcher.is_error():
            raise ConstraintError(matcher.get_error().strip().splitlines()[0])
        return LLSession(self, matcher)


class LLSession:
    """A text under llguidance."""

    def __init__(self, engine: LLGuidance, matcher: Any) -> None:
        self.engine, self.first = engine, matcher
        self.matcher = matcher.deep_copy()
        self.buffer = np.zeros((1, engine.words), np.int32)

    def restarted(self) -> "LLSession":
        return LLSession(self.engine, self.first)

    def mask(self) -> np.ndarray:
        self.engine.library.numpy.fill_next_token_bitmask(self.matcher, self.buffer)
        return self.buffer[0].view(np.uint32)

    def commit(self, token: int) -> bool:
        return bool(self.matcher.consume_token(token)) and not self.matcher.is_error()

    def is_over(self) -> bool:
        return bool(self.matcher.is_accepting())

    def reads(self, tokens: Sequence[int]) -> bool:
        """Return whether `tokens` are a whole text."""
        return all(self.commit(token) for token in tokens) and self.is_over()


class Outlines:
    """outlines-core: a regex of the schema, and its automaton over tokens."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        import outlines_core
        from outlines_core import json_schema

        self.library, self.forms = outlines_core, json_schema
        spelled: dict[bytes, list[int]] = {}
        for i, token in enumerate(vocabulary.tokens):
            if token and i not in vocabulary.eos:
                spelled.setdefault(token, []).append(i)
        self.vocabulary = outlines_core.Vocabulary(vocabulary.eos[0], spelled)
        self.words = -(-len(vocabulary.tokens) // 32)

    def compile(self, schema: str) -> "OutlinesSession":
        try:
            pattern = self.forms.build_regex_from_schema(schema)
            index = self.library.Index(pattern, self.vocabulary)
        except Exception as error:  # it raises several bare ones
            raise ConstraintError(f"{type(error).__name__}: {error}") from error
        return OutlinesSession(self, index)


class OutlinesSession:
    """A text under an index of outlines-core."""

    def __init__(self, engine: Outlines, index: Any) -> None:
        self.engine, self.index = engine, index
        self.guide = engine.library.Guide(index)
        self.buffer = np.zeros(engine.words, np.uint32)

    def restarted(self) -> "OutlinesSession":
        return OutlinesSession(self.engine, self.index)

    def mask(self) -> np.ndarray:
        self.guide.write_mask_into(self.buffer.ctypes.data, len(self.buffer), 4)
        return self.buffer

    def commit(self, token: int) -> bool:
        try:
            self.guide.advance(token, return_tokens=False)
        except ValueError:
            return False
        return True

    def is_over(self) -> bool:
        return bool(self.guide.is_finished())


class XGrammar:
    """xgrammar, with one thread, any white space and other properties allowed."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        import xgrammar

        self.library, size = xgrammar, len(vocabulary.tokens)
        about = xgrammar.TokenizerInfo(
            list(vocabulary.tokens),
            xgrammar.VocabType.RAW,
            vocab_size=size,
            stop_token_ids=list(vocabulary.eos),
        )
        self.compiler = xgrammar.GrammarCompiler(
            about, max_threads=1, cache_enabled=False
        )
        self.eos, self.words = vocabulary.eos[0], -(-size // 32)

    def compile(self, schema: str) -> "XSession":
        try:
            grammar = self.compiler.compile_json_schema(
                schema, any_whitespace=True, strict_mode=False
            )
        except Exception as error:  # its C++ raises several
            raise ConstraintError(f"{type(error).__name__}: {error}") from error
        return XSession(self, grammar)


class XSession:
    """A text under xgrammar."""

    def __init__(self, engine: XGrammar, grammar: Any) -> None:
        self.engine, self.grammar = engine, grammar
        self.matcher = engine.library.GrammarMatcher(grammar)
        self.buffer = np.zeros((1, engine.words), np.int32)

    def restarted(self) -> "XSession":
        return XSession(self.engine, self.grammar)

    def mask(self) -> np.ndarray:
        # False: nothing is masked, and the words are not written.
        if not self.matcher.fill_next_token_bitmask(self.buffer):
            self.buffer[:] = -1
        return self.buffer[0].view(np.uint32)

    def commit(self, token: int) -> bool:
        return bool(self.matcher.accept_token(token))

    def is_over(self) -> bool:
        return has(self.mask(), self.engine.eos)


# Name -> the package that it needs, and the engine.
PEERS: dict[str, tuple[str, Any]] = {
    "decodax, device": ("", Device),
    "decodax, host": ("llguidance", Host),
    "llguidance": ("llguidance", LLGuidance),
    "outlines-core": ("outlines_core", Outlines),
    "xgrammar": ("xgrammar", XGrammar),
}


@functools.lru_cache(1)
def tokenizer(file: str, eos: tuple[int, ...]) -> Any:
    """Read a tokenizer.json, as a model's folder is read."""
    from models.text.hf_tokenizer import Tokenizer

    return Tokenizer(spelling(file), eos)


@functools.lru_cache(1)
def vocabulary(file: str, eos: tuple[int, ...]) -> Vocabulary:
    """Return the vocabulary of a tokenizer.json."""
    return Vocabulary(tuple(tokenizer(file, eos).token_bytes()), eos, file)


@functools.lru_cache(1)
def spelling(file: str) -> Any:
    """Return the tokenizer of a tokenizer.json."""
    from training.data import train_bpe

    return train_bpe.load(file)


def check(names: Sequence[str]) -> None:
    """Raise ConfigError for a name that is no peer's."""
    for name in names:
        if name not in PEERS:
            raise ConfigError(
                f"config.peers has {json.dumps(name)}: use some of {list(PEERS)}"
            )
