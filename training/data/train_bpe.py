"""A byte-level BPE: every string has an encoding, and decoding is exact."""

import os
from collections.abc import Iterable, Iterator

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from models.checkpoints import hub
from models.errors import CheckpointError, DataError

SEPARATOR = "<|endoftext|>"  # id 0: ends a document, and is the only special token


def train(texts: Iterable[str], vocab_size: int) -> tokenizers.Tokenizer:
    """Train a byte-level BPE of exactly `vocab_size` tokens; id 0 is the separator.

    The 256 bytes are always in the vocabulary, hence the byte fallback. Raises
    `DataError` when the text is too small to give that many merges.
    """
    if vocab_size < 257:
        raise DataError(f"vocab_size={vocab_size}: 256 bytes and a separator need 257")
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[SEPARATOR],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != vocab_size:
        raise DataError(
            f"the text gives {tokenizer.get_vocab_size()} tokens, not the "
            f"{vocab_size} of vocab_size: use more text or a smaller vocab_size"
        )
    return tokenizer


def load(path: str | os.PathLike) -> tokenizers.Tokenizer:
    """Read a tokenizer.json, or that of a folder or of a repository of the hub.

    Raises `CheckpointError` where it cannot be used.
    """
    path = hub.local(path, files=hub.TOKENIZER)
    path = path / "tokenizer.json" if path.is_dir() else path
    try:
        return tokenizers.Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error})") from error
    except Exception as error:  # the library raises nothing narrower
        raise CheckpointError(f"{path}: not a tokenizer.json ({error})") from error


def encode(
    tokenizer: tokenizers.Tokenizer, texts: Iterable[str], chunk: int = 256
) -> Iterator[np.ndarray]:
    """Encode documents, in order, to int32[n] arrays without special tokens."""
    pending: list[str] = []
    for text in texts:
        pending.append(text)
        if len(pending) == chunk:
            yield from _encode(tokenizer, pending)
            pending = []
    yield from _encode(tokenizer, pending)


def _encode(tokenizer: tokenizers.Tokenizer, texts: list[str]) -> Iterator[np.ndarray]:
    for item in tokenizer.encode_batch(texts, add_special_tokens=False):
        yield np.asarray(item.ids, np.int32)
