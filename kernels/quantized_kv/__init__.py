"""Attention over a cache with quantised old tokens and exact recent ones."""

from kernels.quantized_kv.api import Old, Recent, attention, boundary
from kernels.quantized_kv.codes import (
    GROUP,
    channels,
    keys,
    numbers,
    stored,
    values,
    whole,
    widen,
)

__all__ = [
    "GROUP",
    "Old",
    "Recent",
    "attention",
    "boundary",
    "channels",
    "keys",
    "numbers",
    "stored",
    "values",
    "whole",
    "widen",
]
