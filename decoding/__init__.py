"""decodax: language-model decoding methods as small files under four loops."""

from decoding.base import Stream
from decoding.catalogue import Card, Spec
from decoding.compose import Method
from decoding.api import Output, generate

__all__ = ["Card", "Method", "Output", "Spec", "Stream", "generate"]
