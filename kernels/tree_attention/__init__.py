"""Attention of a block of tree nodes over a long cache."""

from kernels.tree_attention.api import choose, runs_kernel, tree_attention

__all__ = ["choose", "runs_kernel", "tree_attention"]
