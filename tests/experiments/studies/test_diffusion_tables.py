"""The tables of the stage `diffusion`, on rows by hand."""

import numpy as np
import pytest

from configs.studies import diffusion as recipe
from experiments.studies import diffusion as study
from experiments.studies import diffusion_tables as tables

TEXT = [1, 2, 3, 4]


def row(texts=(TEXT,), seconds=1.0, calls=4, nodes=400, wide=1, **fields):
    many = len(texts)
    lists = {
        "texts": [list(text) for text in texts],
        "calls": [calls] * many,
        "nodes": [nodes] * many,
        "wide": [wide] * many,
        "canvas": [256] * many,
        "bits": [8.0] * many,
        "loop": [0.0] * many,
        "hits": [],
    }
    return {**lists, "seconds": seconds, **fields}


def config(*arms):
    c = recipe.get_config()
    c.tasks, c.temperatures, c.batches = ("infilling",), (0.0,), (1,)
    names = [arm for arm in c.arms if arm["name"] in arms]
    c.arms = tuple(names)
    return c


def rows_of(c, **by_arm):
    """A row for each cell, all alike but for the arms that are named."""
    found = {}
    for cell in study.cells(c):
        fields = by_arm.get(cell.arm.split(",")[0].replace(" ", "_"), {})
        found[cell] = row(**{"hits": [0.5], **fields})
    return found


def test_modelled_speed_by_hand():
    """4 tokens; one call of 256 nodes costs 2, three of 48 nodes cost 1 each.

    Planted: all 400 nodes on four calls of one size would be free.
    """
    assert tables.modelled(row(), 128) == pytest.approx(4 / 5)
    assert tables.modelled(row(wide=0), 128) == 1.0
    assert tables.modelled(row(nodes=256 + 3 * 256), 128) == pytest.approx(4 / 8)


def test_the_title_counts_the_slower_rows():
    c = config("1 a step")
    rows = rows_of(c, autoregressive={"seconds": 0.5, "nodes": 4, "wide": 0})
    found = tables.made(c, rows)
    assert found[0]["title"].startswith("5 of 5 rows are slower")
    assert found[0]["lines"][0][2:5] == ["0 of 5", "0.50x", "0.50x"]
    own = found[1]["lines"]
    assert [line[0] for line in own] == ["autoregressive"] + ["1 a step"] * 5
    quick = {cell: {**x, "seconds": 0.1} for cell, x in rows.items() if cell.cache}
    title = tables.made(c, {**rows, **quick})[0]["title"]
    assert title.startswith("0 of 5")  # planted: quicker rows


def test_texts_of_a_verified_draft():
    """Planted: one other text is counted."""
    c = config("1 a step", "FreeDave, 1 a step")
    rows = rows_of(c, FreeDave={"calls": 2})
    lines = tables.same_texts(c, rows)["lines"]
    assert [line[2:6] for line in lines] == [["1 of 1", "0", "2.0", "4.0"]] * 4
    cell = next(x for x in rows if x.arm.startswith("Free"))
    rows[cell] = {**rows[cell], "texts": [[1, 2, 3, 0]], "calls": [5]}
    assert tables.same_texts(c, rows)["lines"][0][2:4] == ["0 of 1", "1"]


def test_agreement_is_up_to_the_first_difference():
    same = tables.agrees(row(), row(texts=([1, 2, 0, 4],)))
    assert same.tolist() == [0.5]
    assert (
        np.mean(np.equal(TEXT, [1, 2, 0, 4])) == 0.75
    )  # planted: position by position


def test_directions_hold_or_do_not():
    c = config("1 a step")
    rows = rows_of(c, autoregressive={"hits": [0.1]})
    for cell in rows:
        if cell.cache == "dual":
            rows[cell] = {**rows[cell], "texts": [[0, 2, 3, 4]]}
    lines = tables.directions(c, rows)["lines"]
    assert [line[-1] for line in lines] == ["yes", "yes"]
    swapped = {
        cell._replace(
            cache={"dual": "dkv", "dkv": "dual"}.get(cell.cache, cell.cache)
        ): x
        for cell, x in rows.items()
    }
    assert tables.directions(c, swapped)["lines"][0][-1] == "no"  # planted


def test_every_table_has_the_autoregressive_model():
    c = recipe.get_config()
    made = tables.made(c, rows_of(c))
    per_task = [t for t in made if " at T = " in t["title"]]
    assert len(per_task) == len(c.tasks) * len(c.temperatures)
    for table in per_task:
        assert table["lines"][0][0] == tables.AUTOREGRESSIVE
        assert all(len(line) == len(table["heads"]) for line in table["lines"])
    assert any("AdaBlock" in line[0] for line in made[-1]["lines"])
