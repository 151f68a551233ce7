"""Trees as text: the published ones, and the search by accuracies."""

import itertools

import numpy as np
import pytest

from configs.trees import eagle, falcon, medusa
from decoding import tree
from decoding.topologies import static
from decoding.tree_design import tree_code
from models.errors import MethodError

# Name -> leaves and nodes a level, as counted in the repositories.
PUBLISHED = {
    "mc_sim_7b_63": (42, (10, 28, 23, 2)),
    "vicuna_7b_stage1": (44, (10, 32, 20, 1)),
    "vicuna_7b_stage1_ablation": (42, (10, 21, 25, 7)),
    "vicuna_7b_stage2": (42, (10, 23, 23, 7)),
    "vicuna_13b_stage1": (44, (10, 29, 23, 1)),
    "vicuna_13b_stage2": (42, (10, 19, 25, 9)),
    "vicuna_33b_stage1": (46, (10, 34, 19)),
    "vicuna_33b_stage2": (43, (10, 24, 24, 5)),
    "zephyr_stage2": (44, (10, 27, 23, 3)),
    "eagle": (15, (4, 8, 8, 3, 2)),
    "kmask2_8layer_tree": (91, (20, 15, 19, 23, 21, 23, 21, 23)),
    "kmask2_4layer_tree": (60, (20, 19, 21, 15)),
}
EVERY = {**medusa.TREES, **eagle.TREES, **falcon.TREES}

# Rank accuracies measured for prompt tokens on a 7B model; depth 3 is not monotone.
HITS = (
    (0.48335, 0.14342, 0.0736, 0.0454, 0.03087)
    + (0.02155, 0.01658, 0.01323, 0.00932, 0.00845),
    (0.26256, 0.14561, 0.08114, 0.0576, 0.04283)
    + (0.0323, 0.0257, 0.02152, 0.01903, 0.0155),
    (0.1641, 0.1176, 0.0809, 0.0578, 0.0459) + (0.0367, 0.0313, 0.0232, 0.0237, 0.0179),
)


def test_by_hand():
    choices = ((0,), (1,), (0, 0), (0, 1), (1, 0))
    assert tree_code.decode("2 | 2,1") == choices
    assert tree_code.encode(choices) == "2 | 2,1"
    assert tree_code.decode("2 | 0,1 | 1") == ((0,), (1,), (1, 0), (1, 0, 0))


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_trees(name):
    leaves, levels = PUBLISHED[name]
    topology = static.topology(EVERY[name])
    assert topology.widths == (1, *levels)
    shape = tree.Shape(tree_code.decode(EVERY[name]))
    assert len(set(range(shape.nodes)) - set(shape.parents.tolist())) == leaves
    code = tree_code.encode(shape.choices)
    assert code == " | ".join(p.strip() for p in EVERY[name].split("|"))


def test_fault_a_count_moved():
    """Planted: one child under another node is another tree, by the same counts."""
    moved = eagle.TREES["eagle"].replace("3,2,2,1 | 3,2", "3,2,2,1 | 2,3")
    assert static.topology(moved).widths == static.topology(EVERY["eagle"]).widths
    assert tree_code.decode(moved) != tree_code.decode(EVERY["eagle"])


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
    choices, tokens = tree_code.by_accuracy(HITS, drafts)
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
    choices, _ = tree_code.by_accuracy(((0.5, 0.2), (0.4,)), 50)
    assert choices == ((0,), (1,), (0, 0), (1, 0))


def test_bad_codes():
    with pytest.raises(MethodError, match="no list of numbers"):
        tree_code.decode("2 | x")
    with pytest.raises(MethodError, match="names 3 nodes"):
        tree_code.decode("2 | 1,1,1")
    with pytest.raises(MethodError, match="drafts=0"):
        tree_code.by_accuracy(HITS, 0)
