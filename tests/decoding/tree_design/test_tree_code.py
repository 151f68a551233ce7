"""Trees as text: the published ones."""

import pytest

from configs.trees import eagle, falcon, medusa
from decoding.topologies import static
from decoding.tree_design import tree_code, tree_shape
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
    shape = tree_shape.Shape(tree_code.decode(EVERY[name]))
    assert len(set(range(shape.nodes)) - set(shape.parents.tolist())) == leaves
    code = tree_code.encode(shape.choices)
    assert code == " | ".join(p.strip() for p in EVERY[name].split("|"))


def test_fault_a_count_moved():
    """Planted: one child under another node is another tree, by the same counts."""
    moved = eagle.TREES["eagle"].replace("3,2,2,1 | 3,2", "3,2,2,1 | 2,3")
    assert static.topology(moved).widths == static.topology(EVERY["eagle"]).widths
    assert tree_code.decode(moved) != tree_code.decode(EVERY["eagle"])


def test_bad_codes():
    with pytest.raises(MethodError, match="no list of numbers"):
        tree_code.decode("2 | x")
    with pytest.raises(MethodError, match="names 3 nodes"):
        tree_code.decode("2 | 1,1,1")
