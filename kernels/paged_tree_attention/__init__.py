"""Tree attention over a cache that is kept in pages."""

from kernels.paged_tree_attention.api import paged_tree_attention

__all__ = ["paged_tree_attention"]
