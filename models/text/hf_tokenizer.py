"""A thin wrapper over `tokenizers.Tokenizer`: text, ids, and the bytes of each id."""

import codecs
import functools
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tokenizers

from models import storage
from models.checkpoints import tensors
from models.errors import CheckpointError, ConfigError, PromptError
from models.text import chat_template

BYTE = re.compile(r"<0x([0-9A-F]{2})>")


def byte_alphabet() -> dict[str, int]:
    """Build GPT-2's map from the characters of byte-level BPE to bytes.

    Printable Latin-1 characters map to themselves, characters from U+0100 on to the
    other bytes.
    """
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {chr(byte): byte for byte in plain}
    others = (byte for byte in range(256) if byte not in set(plain))
    table.update({chr(256 + i): byte for i, byte in enumerate(others)})
    return table


class Tokenizer:
    """Encoding, decoding and chat prompts of one model.

    `eos` are the ids that end a text, `specials` the ids without a text, and `settings`
    the contents of tokenizer_config.json.
    """

    def __init__(
        self,
        tokenizer: tokenizers.Tokenizer,
        eos: tuple[int, ...] = (),
        settings: dict[str, Any] | None = None,
        template: str | None = None,
    ) -> None:
        self.inner = tokenizer
        self.eos = eos
        self.settings = settings or {}
        self.template = template
        added = tokenizer.get_added_tokens_decoder()
        self.specials = frozenset(i for i, token in added.items() if token.special)
        self.vocab_size = max(self.vocabulary().values(), default=-1) + 1
        decoder = json.loads(tokenizer.to_str()).get("decoder") or {}
        steps = decoder.get("decoders", [decoder])
        self._kinds = {step.get("type") for step in steps}
        # SentencePiece-like decoders drop the space that encoding prepends.
        self._drops_space = any(
            (step.get("type") == "Strip" and step.get("start"))
            or (
                step.get("type") == "Metaspace"
                and step.get("prepend_scheme") != "never"
            )
            for step in steps
        )
        self._bytes: list[bytes] | None = None

    def vocabulary(self) -> dict[str, int]:
        """Return the id of every token, added ones included."""
        return self.inner.get_vocab(with_added_tokens=True)

    def words(self) -> dict[str, int]:
        """Return the id of every ordinary token: all but the added ones."""
        return self.inner.get_vocab(with_added_tokens=False)

    @functools.cached_property
    def digest(self) -> str:
        """A hash of the vocabulary: equal digests mean equal ids for every token.

        Added tokens do not count: models of one family rename them.
        """
        words = json.dumps(sorted(self.words().items()))
        return hashlib.sha256(words.encode()).hexdigest()

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        """Encode `text` to ids; `add_special` prepends BOS if the model has one."""
        return self.inner.encode(text, add_special_tokens=add_special).ids

    def decode(self, ids: Iterable[int]) -> str:
        """Decode `ids` without special tokens; broken UTF-8 becomes U+FFFD."""
        return self.inner.decode([int(i) for i in ids], skip_special_tokens=True)

    def token_bytes(self, size: int = 0) -> list[bytes]:
        """Return the bytes of each id; b"" for specials and unused ids.

        The list has at least `size` entries: embeddings are often padded.

        The text of a sequence is the concatenation, less the one leading space that
        SentencePiece-like tokenizers drop at the start of a text.
        """
        if self._bytes is None:
            table = [b""] * self.vocab_size
            alphabet = byte_alphabet()
            for token, i in self.vocabulary().items():
                if i not in self.specials:
                    table[i] = self._bytes_of(token, alphabet)
            self._bytes = table
        return self._bytes + [b""] * (size - self.vocab_size)

    def _bytes_of(self, token: str, alphabet: dict[str, int]) -> bytes:
        if "ByteLevel" in self._kinds:
            if all(c in alphabet for c in token):
                return bytes(alphabet[c] for c in token)
            return token.encode()
        if self._kinds & {"ByteFallback", "Metaspace", "Replace"}:
            match = BYTE.fullmatch(token) if "ByteFallback" in self._kinds else None
            if match:
                return bytes([int(match[1], 16)])
            return token.replace("▁", " ").encode()
        if self._kinds <= {None, "Fuse"}:
            return token.encode()
        raise CheckpointError(
            f"the bytes of tokens with the decoder {sorted(map(str, self._kinds))} "
            "cannot be derived: use a byte-level or byte-fallback BPE"
        )

    def stream(self) -> "Stream":
        """Return a decoder that takes ids one by one."""
        return Stream(self.token_bytes(), self._drops_space)

    def chat(self, messages: Sequence[dict[str, Any]], **variables: Any) -> list[int]:
        """Encode a conversation by the chat template, up to the answer."""
        return self.encode(self.chat_text(messages, **variables), add_special=False)

    def chat_text(self, messages: Sequence[dict[str, Any]], **variables: Any) -> str:
        """Render the text of a conversation by the chat template."""
        if self.template is None:
            raise PromptError(
                "this model has no chat template (chat_template.jinja, or "
                "chat_template in tokenizer_config.json): give text or token prompts"
            )
        names = ("bos_token", "eos_token", "pad_token", "unk_token")
        named = {name: _content(self.settings.get(name)) for name in names}
        return chat_template.render(
            self.template,
            messages,
            {**{k: v for k, v in named.items() if v}, **variables},
        )

    def save(self, directory: storage.Path) -> None:
        """Write tokenizer.json, tokenizer_config.json and the chat template."""
        storage.write(directory / "tokenizer.json", self.inner.to_str(pretty=True))
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", **self.settings}
        # A class name of version 5 alone would be refused by version 4.
        if settings["tokenizer_class"] == "TokenizersBackend":
            settings["tokenizer_class"] = "PreTrainedTokenizerFast"
        tensors.write_json(directory / "tokenizer_config.json", settings)
        if self.template is not None and "chat_template" not in self.settings:
            storage.write(directory / "chat_template.jinja", self.template)


class Stream:
    """Incremental decoding to text: never a part of a UTF-8 character."""

    def __init__(self, table: list[bytes], drops_space: bool) -> None:
        self._table = table
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._first = drops_space

    def push(self, token: int) -> str:
        """Return the text that `token` completes, which may be empty."""
        piece = self._table[token] if token < len(self._table) else b""
        if self._first and piece:
            self._first = False
            piece = piece.removeprefix(b" ")
        return self._decoder.decode(piece)

    def flush(self) -> str:
        """End the text: return U+FFFD for an unfinished character, or nothing."""
        return self._decoder.decode(b"", final=True)


def check_same(
    name: str, draft: Any, target: Any, error: type[Exception] = ConfigError
) -> None:
    """Refuse the tokenizer of a draft model whose ids mean other tokens.

    Draft and target exchange ids alone, so that the only sign of a mismatch would be
    drafts that are never accepted. Tokenizers of other classes are not compared.
    Vocabularies are hashed once, so that every call of `generate` can check.

    Args:
        name: the draft's name in errors.
        draft: the draft's tokenizer.
        target: the target's tokenizer.
        error: the class of the error.
    """
    both = isinstance(draft, Tokenizer) and isinstance(target, Tokenizer)
    if draft is target or not both or draft.digest == target.digest:
        return
    draft_ids, target_ids = draft.words(), target.words()
    differing = [
        t
        for t in target_ids.keys() | draft_ids.keys()
        if draft_ids.get(t) != target_ids.get(t)
    ]
    first = min(
        differing, key=lambda token: (target_ids.get(token, len(target_ids)), token)
    )
    draft_id, target_id = draft_ids.get(first, "none"), target_ids.get(first, "none")
    raise error(
        f"{name} has another tokenizer: {len(differing)} tokens do not have the "
        f"target's id, {first!r} for one (id {draft_id} there, {target_id} in "
        "the target's): use a draft with the target's tokenizer"
    )


def token_mask(
    name: str, tokens: Sequence[int | str], tokenizer: Any, vocab_size: int
) -> np.ndarray:
    """Mark `tokens`, bool[V]: ids, or strings whose last token is meant.

    A string is read after a letter, since many tokenizers begin a text with a space.

    Args:
        name: what the user calls them, for errors.
        tokens: ids or strings.
        tokenizer: the target's, for strings.
        vocab_size: V.

    Raises:
        PromptError: an id outside the vocabulary, or a string without a token.
    """
    mask = np.zeros(vocab_size, bool)
    for token in tokens:
        ids = tokenizer.encode(f"a{token}")[-1:] if type(token) is str else [token]
        if not ids or ids[0] != int(ids[0]) or not 0 <= ids[0] < vocab_size:
            raise PromptError(
                f"{name} holds {token!r}, which is no token of the vocabulary of "
                f"{vocab_size}: give ids or strings"
            )
        mask[ids[0]] = True
    return mask


def load(directory: storage.Path, eos: tuple[int, ...]) -> Tokenizer | None:
    """Load the tokenizer of a model directory; None if it has no tokenizer.json."""
    path = directory / "tokenizer.json"
    if not path.exists():
        return None
    # `tokenizers` raises plain Exception, so nothing narrower can be caught below.
    tensors.read_json(path)
    try:
        inner = tokenizers.Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except Exception as error:
        raise CheckpointError(
            f"this version of `tokenizers` cannot read {path} ({error}): write the "
            "file again, or update the package"
        ) from error
    settings: dict[str, Any] = {}
    if (directory / "tokenizer_config.json").exists():
        settings = tensors.read_json(directory / "tokenizer_config.json")
    template = _template(settings.get("chat_template"))
    if (directory / "chat_template.jinja").exists():
        template = (directory / "chat_template.jinja").read_text(encoding="utf-8")
    return Tokenizer(inner, eos, settings, template)


def _template(value: Any) -> str | None:
    """Return a template, or the one named "default" of a list."""
    if isinstance(value, list):
        named = {entry["name"]: entry["template"] for entry in value}
        return named.get("default")
    return value


def _content(token: Any) -> str | None:
    """Return the text of a special token, which may be an object with a `content`."""
    return token.get("content") if isinstance(token, dict) else token
