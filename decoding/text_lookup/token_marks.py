"""Tokens that end a step or a sentence, by the characters that they hold or are."""

from typing import Any

import numpy as np

from models.errors import MethodError


def holding(tokenizer: Any, vocab_size: int, separator: str) -> np.ndarray:
    """Say which tokens hold the characters `separator`, bool[V].

    Raises:
        MethodError: none does.
    """
    mark = separator.encode()
    spelt = tokenizer.token_bytes()[:vocab_size]
    found = np.zeros(vocab_size, bool)
    found[: len(spelt)] = [bool(mark) and mark in token for token in spelt]
    if not found.any():
        raise MethodError(
            f"separator={separator!r} lies in no token: use characters of one token"
        )
    return found


def among(tokenizer: Any, vocab_size: int, marks: str) -> np.ndarray:
    """Say which tokens are one of the characters `marks`, bool[V].

    Raises:
        MethodError: none is.
    """
    spelt = tokenizer.token_bytes()[:vocab_size]
    known = {mark.encode() for mark in marks}
    found = np.zeros(vocab_size, bool)
    found[: len(spelt)] = [token in known for token in spelt]
    if not found.any():
        raise MethodError(f"marks={marks!r}: no token of the model is one of them")
    return found
