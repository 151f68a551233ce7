"""Every cache policy of canvases keeps its contract; faults of schedules are seen."""

import pytest

from decoding import Spec, catalogue, check
from decoding.conformance import schedules

POLICIES = catalogue.of_kind("caches", "canvas_policy")


@pytest.mark.long
@pytest.mark.parametrize("name", POLICIES)
def test_policy(name):
    schedules.a_refresh_is_whole(Spec(name))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("diffusion/blocks", marks=pytest.mark.long),
        pytest.param("caches/dual", marks=pytest.mark.long),
        "diffusion/eotp",
    ],
)
def test_fault_of_a_copy(name):
    """Planted: canvases that end early; policies that run too little."""
    check.a_planted_fault_is_caught(Spec(name))
