"""The controller of levels, on traces of bandwidths."""

import itertools

import numpy as np
import pytest

from decoding.serving.cachegen import controller
from decoding.serving.cachegen.controller import TEXT, Piece
from models.errors import MethodError

SIZES = [(400.0, 200.0, 100.0)] * 5


def levels(trace, deadline, recompute=()):
    sent = controller.schedule(SIZES, trace, deadline, recompute)
    assert all(a.ended == b.begun for a, b in itertools.pairwise(sent))
    return [one.level for one in sent], sent[-1].ended


def test_by_hand():
    """The best level that fits, at bandwidths that allow each one."""
    assert levels([Piece(1, 1000)], 2.0) == ([0] * 5, pytest.approx(2.0))
    assert levels([Piece(1, 500)], 2.0)[0] == [1] * 5
    assert levels([Piece(1, 300)], 2.0)[0][:2] == [2, 2]
    # A fall after 1 s: what came early leaves more time for what follows.
    found, end = levels([Piece(1, 1000), Piece(1, 300)], 2.5)
    assert found[:2] == [0, 0] and 2 in found and end <= 2.5 + 1e-9


@pytest.mark.parametrize("seed", range(20))
def test_deadline_holds_where_the_lowest_level_does(seed):
    """At a constant bandwidth; planted: always the best level breaks it."""
    rng = np.random.default_rng(seed)
    sizes = [
        tuple(sorted(rng.uniform(10, 500, 3), reverse=True))
        for _ in range(int(rng.integers(1, 9)))
    ]
    rate = float(rng.uniform(50, 500))
    least = max(size[-1] for size in sizes) * len(sizes) / rate
    deadline = least * float(rng.uniform(1.0, 2.0)) * (1 + 1e-9)
    sent = controller.schedule(sizes, [Piece(1, rate)], deadline)
    assert sent[-1].ended <= deadline * (1 + 1e-9)
    assert sum(s[0] for s in sizes) / rate > deadline or any(x.level == 0 for x in sent)


def test_text_is_recomputed_where_that_is_faster():
    assert levels([Piece(1, 10)], 2.0, [0.3] * 5) == ([TEXT] * 5, pytest.approx(1.5))
    assert TEXT not in levels([Piece(1, 10)], 2.0, [30.0] * 5)[0]


def test_arrival_by_hand():
    """Over the pieces of a trace; planted: the first piece's rate for all."""
    trace = [Piece(1, 100), Piece(2, 10)]
    assert controller.arrival(trace, 0.5, 50) == 1.0
    assert controller.arrival(trace, 0.5, 70) == 3.0
    assert controller.arrival(trace, 0.5, 80) == 4.0  # the last piece goes on
    assert controller.arrival(trace[:1], 0.5, 80) != 4.0


def test_bad_input():
    with pytest.raises(MethodError, match="trace"):
        controller.schedule(SIZES, [], 1.0)
    with pytest.raises(MethodError, match="recompute"):
        controller.schedule(SIZES, [Piece(1, 1)], 1.0, [1.0])
