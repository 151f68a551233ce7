"""The double buffer of pages, in an interpreter whose copies arrive when waited for."""

import dataclasses

import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from kernels import block_traffic
from kernels.tree_attention import page_copies, pallas_tpu, tiling
from tests.kernels import cases
from tests.kernels import test_paged_tree_attention as pages
from tests.kernels.cases import Case, distance, make, oracle
from tests.kernels.test_traffic import shape_of

pytestmark = pytest.mark.kernels

# Rows of 0, 1, 2 and 3 blocks of 128 slots; the last of some has one page of four.
CASE = Case(nodes=3, groups=1, heads=1, size=384)
LATE = pltpu.InterpretParams(dma_execution_mode="on_wait", uninitialized_memory="nan")


def error(page, case=CASE):
    """The distance from the oracle; memory that no copy has filled is NaN."""
    given = pages.pooled(case, page)
    shape = cases.call_shape(case, given, page=page, pages=len(given["k"]))
    cut = tiling.plan(shape, block_traffic.budget("v4"))
    got = pallas_tpu.tree_attention(cut, **given, interpret=LATE)
    return distance(got, oracle(case, make(case)))


@pytest.mark.parametrize(
    "page", [32, *[pytest.param(p, marks=pytest.mark.long) for p in (16, 48, 128, 192)]]
)
def test_a_step_reads_what_it_waited_for(page):
    """Pages that divide a block, that straddle two (48), and that hold one (192)."""
    assert error(page) < CASE.tolerance


def test_fault_a_wait_for_the_other_half(monkeypatch):
    """Of the step before."""
    wait = page_copies.PageCopies.wait

    def wait_behind(copies, t):
        @pl.when(t > copies.plan.lead)
        def _():
            wait(copies, t - 1)

    monkeypatch.setattr(page_copies.PageCopies, "wait", wait_behind)
    assert error(32) > 100 * CASE.tolerance


@pytest.mark.long
def test_fault_the_last_page_of_a_row_is_not_copied(monkeypatch):
    """Of a last step that is partly full."""
    needed = tiling.Plan.needed
    monkeypatch.setattr(
        tiling.Plan,
        "needed",
        lambda plan, begin, end: needed(plan, begin, end - plan.piece + 1),
    )
    assert error(32) > 100 * CASE.tolerance


def test_steps_and_pages_by_hand():
    """One step more, ahead of the first; blocks of 1,024 slots, pages of 16 and 48."""
    shape = shape_of("8B", 3, 8192, 1, page=16, pages=2000)
    shape = dataclasses.replace(shape, groups=1)
    cut = tiling.plan(shape, block_traffic.budget("v5e"))
    assert (cut.block, cut.piece, cut.pieces) == (1024, 16, 64)
    bounds = cut.bounds_at([0, 1023, 1056])
    _, rows, blocks, counts = map(np.asarray, cut.scalars(bounds))
    assert counts.tolist() == [1 + 1 + 1 + 2]
    assert rows[:5].tolist() == [0, 0, 1, 2, 2]
    assert blocks[:5].tolist() == [0, 0, 0, 0, 1]
    many = [
        int(cut.needed(np.array(1024 * b), bounds[2, r]))
        for r, b in ((0, 0), (1, 0), (2, 1))
    ]
    assert many == [1, 64, 3]
    assert cut.traffic(bounds)["k"] == (1 + 64 + 64 + 3) * 16 * 128 * 2
    odd = dataclasses.replace(cut, shape=dataclasses.replace(shape, page=48))
    assert (odd.piece, odd.pieces) == (16, 64)
