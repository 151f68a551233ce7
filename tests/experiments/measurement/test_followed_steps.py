"""Nodes whose next token was drafted: by hand, and in a whole decoding."""

import types

import numpy as np

from decoding import Method, Spec, base
from decoding.conformance import kit
from experiments.measurement import followed_steps
from experiments.measurement.followed_steps import SIBLING, SPINE
from experiments.measurement.workbench import Bench, Case


def found(path: list[int]) -> dict:
    """Counts of one round whose accepted path is given."""
    tree = types.SimpleNamespace(
        parents=np.array([[0, 0, 0, 1, 2, 2, 4]]),
        kind=np.array([[base.CANDIDATE] * 7]),
    )
    verdict = types.SimpleNamespace(
        path=np.array([path + [0] * (3 - len(path))]), count=np.array([len(path)])
    )
    counted = {SPINE: [0, 0], SIBLING: [0, 0]}
    followed_steps._add(counted, tree, verdict, 0)
    return counted


def test_places_by_hand():
    """Children: 0 has 1 and 2, 1 has 3, 2 has 4 and 5, 4 has 6."""
    assert found([]) == {SPINE: [0, 1], SIBLING: [0, 0]}
    assert found([1]) == {SPINE: [1, 2], SIBLING: [0, 0]}
    assert found([1, 3]) == {SPINE: [2, 2], SIBLING: [0, 0]}  # a leaf is not counted
    assert found([2]) == {SPINE: [1, 1], SIBLING: [0, 1]}
    assert found([2, 5]) == {SPINE: [1, 1], SIBLING: [1, 1]}
    assert found([2, 4]) == {SPINE: [1, 1], SIBLING: [1, 2]}


def test_a_perfect_drafter_is_always_followed():
    """The target drafts for itself; planted: another model."""
    topology = Spec("topologies/static", choices=kit.SMALL_TREE)
    case = Case(Method(Spec("drafters/model"), topology=topology), 0.0)
    prompts = [list(p) for p in kit.PROMPTS]

    def share(draft) -> list[int]:
        bench = Bench(kit.TARGET, {"draft": draft}, 16, 12, len(prompts))
        counted = followed_steps.counts(bench, case, prompts, 0)
        assert counted[SIBLING][0] <= counted[SIBLING][1]
        return counted[SPINE]

    right, every = share(kit.TARGET)
    assert right == every > 0
    right, every = share(kit.DRAFT)
    assert right < every
