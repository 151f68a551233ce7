"""Which tests CI runs."""

import pytest

from tests import ci_budget

COSTS = {
    "a.py::test_x[1]": 3.0,
    "a.py::test_x[2]": 1.0,
    "a.py::test_x[3]": 2.0,
    "a.py::test_y": 9.0,
    "b.py::test_z[1]": 4.0,
    "b.py::test_z[2]": 4.5,
}


@pytest.mark.parametrize(
    ("budget", "kept", "wanted"),
    [
        (100.0, (), ""),
        (7.0, (), "a.py::test_x[1] a.py::test_y b.py::test_z[2]"),
        (0.0, (), "a.py::test_x[1] a.py::test_x[3] a.py::test_y b.py::test_z[2]"),
        (0.0, ("a.py::test_y", "c"), "a.py::test_x[1] a.py::test_x[3] b.py::test_z[2]"),
    ],
)
def test_the_cheapest_stay(budget, kept, wanted):
    assert ci_budget.left_out(COSTS, budget, 5.0, kept) == wanted.split()


def test_of_each_function_one_case_stays():
    """Planted: the cheapest tests of all stay, whosever they are."""

    def missing(out: list[str]) -> set[str]:
        stay = {name.split("[")[0] for name in COSTS if name not in out}
        return {name.split("[")[0] for name in COSTS} - stay

    assert missing(ci_budget.left_out(COSTS, 8.0, 5.0, ())) == {"a.py::test_y"}
    cheap = sorted(COSTS, key=COSTS.__getitem__)[:3]
    assert "b.py::test_z" in missing([name for name in COSTS if name not in cheap])
