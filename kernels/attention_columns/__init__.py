"""Attention that each cache slot got, summed over stored queries."""

from kernels.attention_columns.api import columns

__all__ = ["columns"]
