"""Diversity of a text: its type-token ratio, and what it cites from other texts."""

from collections.abc import Sequence

import numpy as np


def type_token_ratio(tokens: Sequence[int], last: int = 96) -> float:
    """Return different tokens ÷ tokens among the `last` ones; 0 for an empty text."""
    part = list(tokens)[-last:]
    return len(set(part)) / max(len(part), 1)


def longest_citation(tokens: Sequence[int], texts: Sequence[np.ndarray]) -> int:
    """Return the length of the longest run of `tokens` that lies in one of `texts`.

    Cost: a comparison of every token with all texts.
    """
    flat = np.concatenate([x for text in texts for x in (text, [-1])])
    # lengths[j]: of the longest run that ends at this token and at flat[j].
    lengths, longest = np.zeros(len(flat), np.int32), 0
    for token in tokens:
        before = np.concatenate([[0], lengths[:-1]])
        lengths = np.where(flat == token, before + 1, 0).astype(np.int32)
        longest = max(longest, int(lengths.max()))
    return longest
