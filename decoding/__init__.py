"""decodax: language-model decoding methods as small files under four loops."""

from decoding.api import Output, Piece, generate, stream, tune
from decoding.base import Derived, Stream
from decoding.catalogue import Card, Spec
from decoding.listing import cite, methods
from decoding.method import Method
from decoding.version import __version__

__all__ = [
    "Card",
    "Derived",
    "Method",
    "Output",
    "Piece",
    "Spec",
    "Stream",
    "__version__",
    "cite",
    "generate",
    "methods",
    "stream",
    "tune",
]
