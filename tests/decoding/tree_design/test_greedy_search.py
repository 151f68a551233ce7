"""The tree that measured accuracies make best."""

import itertools

import numpy as np
import pytest

from decoding.tree_design import greedy_search, tree_code
from models.errors import MethodError

# Rank accuracies measured for prompt tokens on a 7B model; depth 3 is not monotone.
HITS = (
    (0.48335, 0.14342, 0.0736, 0.0454, 0.03087)
    + (0.02155, 0.01658, 0.01323, 0.00932, 0.00845),
    (0.26256, 0.14561, 0.08114, 0.0576, 0.04283)
    + (0.0323, 0.0257, 0.02152, 0.01903, 0.0155),
    (0.1641, 0.1176, 0.0809, 0.0578, 0.0459) + (0.0367, 0.0313, 0.0232, 0.0237, 0.0179),
)


@pytest.mark.parametrize(
    ("drafts", "code", "value"),
    [
        (8, "4 | 3,1", 1.01993),
        (25, "8 | 8,3,2,1 | 2,1", 1.31092),
        (
            63,
            "10 | 10,7,5,3,2,2,1,1 | 7,5,3,2,1,0,0,0,0,0,2,1,0,0,0,0,0,1",
            1.51698,
        ),
    ],
)
def test_search_by_accuracy(drafts, code, value):
    choices, tokens = greedy_search.by_accuracy(HITS, drafts)
    assert tree_code.encode(choices) == code
    assert abs(tokens - 1 - value) < 1e-5
    ranks = [range(10)] * 3
    every = [
        np.prod([HITS[d][r] for d, r in enumerate(path)])
        for depth in (1, 2, 3)
        for path in itertools.product(*ranks[:depth])
    ]
    assert abs(sum(sorted(every)[-drafts:]) - value) < 1e-5


def test_search_ends_with_the_candidates():
    choices, _ = greedy_search.by_accuracy(((0.5, 0.2), (0.4,)), 50)
    assert choices == ((0,), (1,), (0, 0), (1, 0))


def test_no_tree_of_nothing():
    with pytest.raises(MethodError, match="drafts=0"):
        greedy_search.by_accuracy(HITS, 0)
