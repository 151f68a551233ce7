"""Times of masks: what runs, and the table."""

import jax
import numpy as np
import pytest

from configs.studies import accelerator_day as recipe
from experiments.studies.kernels import mask_case, mask_timing

pytestmark = pytest.mark.kernels


def test_every_batch_is_masked_in_turn(monkeypatch):
    """The state that the program returns is the parity of all masks, by hand.

    Planted: a program that masks the first batch alone.
    """
    case = mask_case.case(2048, 40)
    monkeypatch.setattr(mask_case, "case", lambda size, endings: case)
    ran, jit = [], jax.jit
    keep = lambda f: lambda *a: ran.append(jit(f)(*a)) or ran[-1]
    settings = recipe.rehearsal().masks
    settings.update({"vocabularies": ((2048, 40),), "nodes": (4,)})
    settings.update({"batches": 3, "calls": 3})
    each = [np.asarray(mask_case.masks(case.tables, b)) for b in case.batches(4, 3)]
    monkeypatch.setattr(jax, "jit", keep)
    (row,) = mask_timing.rows(settings, 1.0)
    parity = np.asarray(ran[0])
    assert (parity == each[0] ^ each[1] ^ each[2]).all()
    assert (parity != each[0]).any()
    assert row["us"] > 0 and row["logsumexp"] > 0
    about = {"vocab": 2048, "ends": case.ends, "nodes": 4, "read": 64, "pairs": 64}
    assert {name: row[name] for name in about} == about


def test_shares_of_a_round_by_hand():
    """64 masks of 5 µs of the faster round of 64 nodes, 1.6 ms: a fifth.

    Planted: the round of one node, and the slower form.
    """
    row = {"vocab": 4096, "ends": 7, "read": 64, "pairs": 16, "nodes": 64}
    row |= {"us": 5.0, "logsumexp": 0.25}
    times = ((1, 1.0), (64, 1.6), (64, 3.2))
    rounds = [{"nodes": nodes, "ms": ms} for nodes, ms in times]
    assert mask_timing.share(row, rounds) == "20.0 %"
    assert mask_timing.share(row, rounds[2:]) == "10.0 %"
    assert mask_timing.share(row, rounds[:1]) == ""
    pieces = {"parity": {"rows": []}, "rounds_1B": {"rows": rounds}}
    text = mask_timing.markdown([row], pieces | {"rounds_8B": {"rows": []}})
    assert "| 4,096 | 7 | 64 | 16 | 64 | 5.00 | 0.25 | 20.0 % |  |" in text
    assert "of a round of 8B" in text and "no bar" in text
