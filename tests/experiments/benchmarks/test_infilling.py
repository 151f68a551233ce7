"""Infilling: holes and their sides, fills of a canvas and of a left-to-right model."""

import gzip
import json

import pytest

import models
from decoding.conformance import kit
from experiments.benchmarks import infilling
from experiments.benchmarks.infilling import Hole
from models.errors import DataError
from models.synthetic import toy_masked

SOURCE = '''"""A module."""


def total_cost(prices, tax):
    subtotal = sum(prices)
    return subtotal * (1 + tax)


print(total_cost([1, 2], 0.5))
'''


@pytest.fixture(scope="module")
def lm():
    return models.load("tiny")


def joined(lm, hole) -> str:
    return lm.tokenizer.decode([*hole.prompt, *hole.middle, *hole.suffix])


def test_identifiers(lm):
    """Planted: the sides of the whole file, though the hole sees less."""
    place = infilling.names(SOURCE)
    assert place["subtotal"] == [
        SOURCE.index("subtotal"),
        SOURCE.index("subtotal *"),
    ]
    assert "def" not in place and infilling.names("def (:\n  'x") == {}
    holes = infilling.identifiers(lm, [("a.py", SOURCE)], 5, around=64, seed=1)
    names = [hole.name.removeprefix("a.py: ") for hole in holes]
    assert len({*names}) == 5 and {*names} <= {*place}
    for name, hole in zip(names, holes):
        assert lm.tokenizer.decode(hole.middle).strip(" ") == name
        assert joined(lm, hole) == SOURCE
        others = len(place[name]) - 1
        assert (hole.seen == infilling.NEITHER) == (others == 0)
    near = infilling.identifiers(lm, [("a.py", SOURCE)], 5, around=2, seed=1)
    assert [hole.middle for hole in near] == [hole.middle for hole in holes]
    assert all(len(hole.prompt) <= 2 >= len(hole.suffix) for hole in near)
    assert {hole.seen for hole in near} != {hole.seen for hole in holes}
    with pytest.raises(DataError, match="use a smaller count or more files"):
        infilling.identifiers(lm, [("a.py", SOURCE)], 50)


def test_rounds_take_one_name_of_each_file(lm):
    files = [("a.py", SOURCE), ("b.py", SOURCE)]
    holes = infilling.identifiers(lm, files, 4)
    assert [hole.name[:4] for hole in holes] == ["a.py", "b.py"] * 2


def test_humaneval(lm, tmp_path):
    """The parts spell the file's text; planted: the middle left out."""
    rows = [
        {"task_id": f"t{i}", "prompt": "def f(a):\n", "suffix": "    return b\n"}
        for i in range(3)
    ]
    middles = ["    b = a + 1\n", "", "    b = [a + i for i in range(100)][0]\n"]
    lines = [json.dumps({**r, "canonical_solution": m}) for r, m in zip(rows, middles)]
    path = tmp_path / infilling.FILES["single_line"]
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    holes = infilling.humaneval(lm, str(tmp_path))
    assert [hole.name for hole in holes] == ["t0", "t2"]
    assert joined(lm, holes[0]) == "def f(a):\n    b = a + 1\n    return b\n"
    assert joined(lm, holes[0]._replace(middle=())) != joined(lm, holes[0])
    size = len(holes[0].middle)
    short = infilling.humaneval(lm, str(tmp_path), "single_line", 1, 2, size)
    assert short[0].middle == holes[0].middle
    assert short[0].prompt == holes[0].prompt[-2:]
    assert short[0].suffix == holes[0].suffix[:2]
    with pytest.raises(DataError, match="has 1 holes of at most"):
        infilling.humaneval(lm, str(tmp_path), "single_line", 2, 2, size)
    with pytest.raises(DataError, match="use one of"):
        infilling.humaneval(lm, str(tmp_path), "double_line")
    path.write_bytes(gzip.compress(b"{}"))
    with pytest.raises(DataError, match="not a row of a single_line file"):
        infilling.humaneval(lm, str(tmp_path))


HOLES = [
    Hole("a", (1, 2), (3, 1), (4, 4, 0)),
    Hole("b", (2,), (2, 0, 1), (3,)),
    Hole("c", (0, 1, 2), (4,), (1, 0)),
]


def test_a_canvas_sees_the_suffix_and_no_hole_ends_a_text():
    """Planted: other suffixes give other fills."""
    model, params = toy_masked.model(6, seed=3, eos=(4,))
    lm = models.Loaded(model, params)
    *fills, again = infilling.fill(lm, [*HOLES, *HOLES], batch=3)[:4]
    assert fills[0] == again
    assert [len(tokens) for tokens in fills] == [3, 1, 2]
    assert all(token not in (4, 5) for tokens in fills for token in tokens)
    others = [hole._replace(suffix=(0, 0, 0)) for hole in HOLES]
    assert infilling.fill(lm, others, batch=3) != fills


def test_a_left_to_right_model_sees_the_prompt_alone():
    """Planted: a hole of another prompt."""
    fills = infilling.fill(kit.TARGET, HOLES, batch=3)
    plain = [
        kit.greedy_by_hand(kit.TARGET.params, list(hole.prompt), len(hole.middle))
        for hole in HOLES
    ]
    assert fills == plain
    others = [hole._replace(suffix=()) for hole in HOLES]
    assert infilling.fill(kit.TARGET, others, batch=3) == fills
    moved = [hole._replace(prompt=(5, 3)) for hole in HOLES]
    assert infilling.fill(kit.TARGET, moved, batch=3) != fills


def test_score():
    """Planted: a right beginning is not exact."""
    hole = HOLES[0]
    assert infilling.score(hole, [4, 4, 0]) == (1, 1)
    assert infilling.score(hole, [4, 4]) == (0, pytest.approx(2 / 3))
    assert infilling.score(hole, [0, 4, 4]) == (0, pytest.approx(1 / 3))
    assert infilling.score(hole, []) == (0, 0)
