"""Drawn places of texts: which, in what order, and on what the draw depends."""

import numpy as np

from training.objectives import drawn_places

ABLE = np.zeros((2, 20), np.float32)
ABLE[:, 5:17] = 1
ROWS = {"row": np.array([3, 4])}


def draw(count: int, seed: int = 0, rows=ROWS) -> np.ndarray:
    return np.asarray(drawn_places.drawn(ABLE, rows, count, seed))


def test_places_that_may_be_learned_come_first():
    """Each once, by row; planted: another seed."""
    order = draw(14)
    for row in order:
        assert len(set(row.tolist())) == 14
        assert set(row[:12].tolist()) == set(range(5, 17))
    assert (order[0] != order[1]).any()
    assert (draw(14, seed=1) != order).any()


def test_a_draw_of_fewer_is_the_start_of_a_draw():
    """Nested; planted: the other row's."""
    order = draw(14)
    assert (draw(6) == order[:, :6]).all() and (draw(6) != order[::-1, :6]).any()


def test_a_row_draws_the_same_wherever_it_stands():
    swapped = draw(14, rows={"row": np.array([4, 3])})
    assert (swapped[::-1] == draw(14)).all()
    assert (swapped != draw(14)).any()


def test_all_places_are_in_order():
    assert (draw(20) == np.arange(20)).all()
    assert (draw(19)[0] != np.arange(19)).any()
