"""decoding/automata/schema_members.py: what inner values must be and leave."""

from decoding.automata.schema_formulas import FALSE, TRUE, Logic
from decoding.automata.schema_members import GONE, behind, tracking

LOGIC = Logic()
A, B, C = (LOGIC.atom(("members", name)) for name in "abc")
DEMANDS = {name: LOGIC.atom(name) for name in "abc"}


def _tracking(*formulas):
    return tracking(LOGIC, formulas, "members", lambda atom: DEMANDS[atom[1]])


def test_a_needed_atom_is_demanded_and_not_tracked():
    demands = _tracking(LOGIC.all([A, LOGIC.any([B, C])]))
    any_ = LOGIC.any([DEMANDS["b"], DEMANDS["c"]])
    assert demands.wanted is LOGIC.all([DEMANDS["a"], any_])
    assert demands.tracked == (DEMANDS["b"], DEMANDS["c"])


def test_a_negated_atom_demands_nothing_yet():
    demands = _tracking(LOGIC.no(A))
    assert demands.wanted is TRUE and demands.tracked == (DEMANDS["a"],)


def test_violations_leave_the_other_alternatives():
    formulas = (LOGIC.one([A, B]), A)
    demands = _tracking(*formulas)
    assert behind(LOGIC, formulas, demands, (False, True)) == (B, FALSE)
    assert behind(LOGIC, formulas, demands, (True, True)) == formulas


def test_a_violation_that_may_not_last():
    """A negation does not become true for good by a member that may be repeated."""
    gone = LOGIC.atom(GONE)
    formulas = (LOGIC.no(A),)
    demands = _tracking(*formulas)
    assert behind(LOGIC, formulas, demands, (False,), True) == (LOGIC.no(gone),)
    formulas = (LOGIC.any([A, B]),)
    demands = _tracking(*formulas)
    assert behind(LOGIC, formulas, demands, (False, True), True) == (B,)


def test_fault_a_violation_that_always_lasts():
    """Planted: the member counts as one whose name cannot be repeated."""
    formulas = (LOGIC.no(A),)
    assert behind(LOGIC, formulas, _tracking(*formulas), (False,), False) == (TRUE,)
