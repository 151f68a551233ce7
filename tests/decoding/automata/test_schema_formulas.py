"""decoding/automata/schema_formulas.py against truth tables of three values."""

import itertools
import random

from decoding.automata.schema_formulas import FALSE, TRUE, UNKNOWN, Logic, atoms

THREE = (TRUE, FALSE, UNKNOWN)


def _random(rng, depth):
    """A formula as nested lists over the atoms a, b, c."""
    if depth == 0 or rng.random() < 0.2:
        return rng.choice(["a", "b", "c", "true", "false"])
    kind = rng.choice(["all", "any", "one", "no"])
    count = 1 if kind == "no" else rng.randrange(1, 4)
    return [kind, *(_random(rng, depth - 1) for _ in range(count))]


def _built(logic, tree):
    if isinstance(tree, str):
        constants = {"true": TRUE, "false": FALSE}
        return constants.get(tree) or logic.atom((tree,))
    kind, *parts = tree
    built = [_built(logic, part) for part in parts]
    return logic.no(built[0]) if kind == "no" else getattr(logic, kind)(built)


def _value(tree, values):
    if isinstance(tree, str):
        return {"true": True, "false": False}.get(tree, values.get(tree))
    kind, *parts = tree
    inner = [_value(part, values) for part in parts]
    if kind == "no":
        return not inner[0]
    return {"all": all(inner), "any": any(inner), "one": sum(inner) == 1}[kind]


def _wrong(build) -> int:
    """Return how many values of random formulas differ from the truth."""
    rng, wrong = random.Random(0), 0
    for _ in range(300):
        tree = _random(rng, 3)
        logic = Logic()
        formula = build(logic, tree)
        for bits in itertools.product([True, False, None], repeat=3):
            known = dict(zip("abc", bits))
            constants = {True: TRUE, False: FALSE, None: UNKNOWN}
            value = logic.replaced(formula, lambda a, k=known, c=constants: c[k[a[0]]])
            open_ = [name for name in "abc" if known[name] is None]
            truths = {
                _value(tree, known | dict(zip(open_, guess)))
                for guess in itertools.product([True, False], repeat=len(open_))
            }
            # A constant must be right whatever the open atoms are.
            if value is not UNKNOWN and value in (TRUE, FALSE):
                wrong += truths != {value is TRUE}
            else:
                wrong += len(open_) == 0
    return wrong


def test_values_agree_with_truth_tables():
    assert _wrong(_built) == 0


def test_fault_one_that_counts_a_repeated_part_once():
    """Planted: equal parts of `one` are merged, as those of `any` may be."""

    def faulty(logic, tree):
        if isinstance(tree, list) and tree[0] == "one":
            parts = dict.fromkeys(faulty(logic, part) for part in tree[1:])
            return logic.one(parts)
        if isinstance(tree, str):
            return _built(logic, tree)
        built = [faulty(logic, part) for part in tree[1:]]
        return logic.no(built[0]) if tree[0] == "no" else getattr(logic, tree[0])(built)

    assert _wrong(faulty) > 0


def test_equal_formulas_are_one_object():
    logic = Logic()
    a, b = logic.atom(("a",)), logic.atom(("b",))
    assert logic.all([a, b, a]) is logic.all([a, b])
    assert logic.no(logic.all([a, b])) is logic.any([logic.no(a), logic.no(b)])
    assert logic.all([a, logic.no(a)]) is FALSE
    assert atoms([logic.any([b, logic.no(a)])]) == [("b",), ("a",)]


def test_relaxed_is_implied():
    """If a formula may still hold, so does its relaxation under its atoms' values."""
    rng = random.Random(1)
    for _ in range(200):
        tree, logic = _random(rng, 3), Logic()
        formula = _built(logic, tree)
        for bits in itertools.product([True, False], repeat=3):
            known = dict(zip("abc", bits))
            bound = logic.relaxed(
                formula, lambda atom, known=known: TRUE if known[atom[0]] else FALSE
            )
            # An atom that holds so far may fail later: any subset may hold at the end.
            later = any(
                _value(tree, {n: known[n] and keep for n, keep in zip("abc", keeps)})
                for keeps in itertools.product([True, False], repeat=3)
            )
            assert bound is TRUE or not later


def test_certain_drops_what_stays_unknown():
    logic = Logic()
    a = logic.atom(("a",))
    assert logic.certain(logic.any([a, UNKNOWN])) is a
    assert logic.certain(logic.all([a, UNKNOWN])) is FALSE
