"""decodax: language-model decoding methods as small files under four loops."""

from decoding.api import Output, generate
from decoding.base import Stream
from decoding.catalogue import Card, Spec
from decoding.method import Method

__all__ = ["Card", "Method", "Output", "Spec", "Stream", "generate"]
