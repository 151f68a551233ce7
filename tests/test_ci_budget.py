"""Which tests CI runs."""

import pytest

from tests import ci_budget

COSTS = {
    "a.py::test_x[1]": 3.0,
    "a.py::test_x[2]": 0.1,
    "a.py::test_x[3]": 0.2,
    "a.py::test_y": 9.0,
    "b.py::test_z[1]": 1.5,
    "b.py::test_z[2]": 1.0,
}
DEAR = "a.py::test_y"


@pytest.mark.parametrize(
    ("budget", "kept", "wanted"),
    [
        (100.0, (), []),
        (0.1, (), [1, 3, "y", "z1", "z2"]),
        (0.4, (), [1, "y", "z1", "z2"]),
        (1.4, (), [1, "y", "z1"]),
        (1.4, (DEAR, "c"), [1, 2, 3, "z1", "z2"]),
    ],
)
def test_the_cheapest_stay(budget, kept, wanted):
    names = {1: "a.py::test_x[1]", 2: "a.py::test_x[2]", 3: "a.py::test_x[3]"}
    names |= {"y": DEAR, "z1": "b.py::test_z[1]", "z2": "b.py::test_z[2]"}
    assert ci_budget.left_out(COSTS, budget, 2.0, kept) == [names[x] for x in wanted]


def test_of_each_function_one_case_stays():
    """Planted: the cheapest tests of all stay, whosever they are."""
    costs = {**COSTS, "c.py::test_w": 1.8}

    def missing(out: list[str]) -> set[str]:
        stay = {name.split("[")[0] for name in costs if name not in out}
        return {name.split("[")[0] for name in costs} - stay

    assert missing(ci_budget.left_out(costs, 3.2, 2.0, ())) == {DEAR}
    cheap = sorted(costs, key=costs.__getitem__)[:4]
    assert "c.py::test_w" in missing([name for name in costs if name not in cheap])
