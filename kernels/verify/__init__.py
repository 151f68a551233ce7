"""What a round asks of the logits of its nodes, without writing probabilities."""

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
