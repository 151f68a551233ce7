"""Attention over prefixes that rows share, read once for all of them."""

from kernels.shared_prefix_attention.api import Level, shared_prefix_attention

__all__ = ["Level", "shared_prefix_attention"]
