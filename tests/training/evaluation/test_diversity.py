"""Diversity of texts, by hand."""

import numpy as np

from decoding.loops import stats
from training.evaluation import diversity


def test_type_token_ratio():
    """Of the last tokens; planted: of all of them."""
    constant = [7] * 200
    assert diversity.type_token_ratio(constant) == 1 / 96
    assert stats.loop_share(constant) == 1
    assert diversity.type_token_ratio(range(200)) == 1
    assert diversity.type_token_ratio([]) == 0
    text = [1, 2, 3, 4, 5, 5, 5, 5]
    assert diversity.type_token_ratio(text, 4) == 0.25
    assert diversity.type_token_ratio(text) == 5 / 8


def test_longest_citation():
    """Planted: texts that are joined hold a longer run than each of them."""
    texts = [np.array([1, 2, 3, 4]), np.array([5, 6, 5, 6, 7])]
    assert diversity.longest_citation([9, 2, 3, 4, 9, 6, 7], texts) == 3
    assert diversity.longest_citation([6, 5, 6, 7, 1, 2], texts) == 4
    assert diversity.longest_citation([8, 9], texts) == 0
    assert diversity.longest_citation([], texts) == 0
    across = [3, 4, 5, 6]
    assert diversity.longest_citation(across, texts) == 2
    assert diversity.longest_citation(across, [np.concatenate(texts)]) == 4
