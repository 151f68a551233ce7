"""Every schedule, and every cache policy of canvases, keeps its contract."""

import pytest

from decoding import Spec, catalogue, check
from decoding.conformance import schedules

PARTS = catalogue.names("diffusion")
POLICIES = catalogue.of_kind("caches", "canvas_policy")
USUAL = ("diffusion/fast_dllm", "diffusion/blocks")


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.long] * (n not in USUAL)) for n in PARTS],
)
def test_schedule(name):
    schedules.check(Spec(name))


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
