"""Times that a call's clock corrects."""

import numpy as np
import pytest

from decoding.block_width import costs

MEASURED = costs.Costs(np.float32(1.0), np.float32([1.1, 2.0, 3.0]), np.float32(0.1))
ONLY = {"plain": 0, "a width": 2}


def called(part: int, truth: float, calls: int) -> costs.Costs:
    """Costs after calls of 50 rounds of one kind, each of which takes `truth`."""
    believed = MEASURED
    for _ in range(calls):
        times = np.concatenate([[believed.plain], believed.block])
        spent = np.where(np.arange(4) == part, 50 * times, 0.0)
        believed = costs.corrected(believed, MEASURED, spent, 50 * truth)
    return believed


@pytest.mark.parametrize("part", ONLY.values(), ids=ONLY)
@pytest.mark.parametrize("share", [0.8, 1.3])
def test_calls_find_the_true_time(part, share):
    """Of what they ran, within 1 % after ten; planted: not after one."""
    measured = [MEASURED.plain, *MEASURED.block][part]
    true = share * measured
    found = called(part, true, 10)
    assert [found.plain, *found.block][part] == pytest.approx(true, rel=0.01)
    early = called(part, true, 1)
    assert [early.plain, *early.block][part] != pytest.approx(true, rel=0.05)
    assert found.block[2] == MEASURED.block[2] and found.level == MEASURED.level


def test_a_correction_is_bounded():
    """A machine that stood still for a minute does not teach that for ever."""
    slow = called(2, 1e6, 20)
    assert slow.block[1] == np.float32(MEASURED.block[1] * costs.WRONG)
    assert called(0, 1e6, 20).plain == np.float32(MEASURED.plain * costs.WRONG)


def test_a_round_with_a_draft_is_never_believed_cheaper():
    """Plain rounds that are found dearer lift it; a cheap draft lowers plain ones."""
    dear = called(0, 1.4, 20)
    assert dear.block.min() >= dear.plain > MEASURED.block[0]
    cheap = called(1, 0.8, 20)
    assert cheap.plain <= cheap.block[0] < MEASURED.plain
