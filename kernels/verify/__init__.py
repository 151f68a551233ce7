"""One-pass statistics of a round's logits, without arrays of probabilities."""

from kernels.verify.api import (
    Facts,
    Rest,
    Shape,
    choose,
    merge,
    merge_rest,
    residual,
    thresholds,
    verify,
)

__all__ = [
    "Facts",
    "Rest",
    "Shape",
    "choose",
    "merge",
    "merge_rest",
    "residual",
    "thresholds",
    "verify",
]
