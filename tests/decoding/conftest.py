"""A tokenizer as constraints see it: the bytes of every id."""

import os
import pathlib
import re
from collections import Counter
from collections.abc import Callable

import pytest


class Bytes:
    """The part of a tokenizer that constraints use."""

    def __init__(self, tokens: list[bytes]):
        self.tokens = tokens

    def token_bytes(self) -> list[bytes]:
        return list(self.tokens)


@pytest.fixture(scope="session")
def tokenizer() -> Callable:
    """tokenizer(tokens) over a list of bytes; b"" is a special token."""
    return Bytes


@pytest.fixture(scope="session")
def words() -> list[bytes]:
    """131,072 tokens: a special, all bytes, then words of Python's standard library and
    their pieces, the frequent ones first, as a byte-level BPE would have them."""
    library = pathlib.Path(os.__file__).parent
    counts: Counter = Counter()
    for path in sorted(library.glob("*.py")) + sorted(library.glob("*/*.py")):
        if "site-packages" not in path.parts:
            text = path.read_text(errors="ignore")
            counts.update(re.findall(r" ?\w+|\s+|[^\w\s]+", text))
    tokens = dict.fromkeys([b""] + [bytes([byte]) for byte in range(256)])
    for word, _ in counts.most_common():
        data = word.encode()
        ends = [(i, j) for i in range(len(data)) for j in range(i + 2, len(data) + 1)]
        tokens.update(dict.fromkeys(data[i:j] for i, j in ends if j - i <= 12))
        if len(tokens) >= 131_072:
            break
    return list(tokens)[:131_072]
