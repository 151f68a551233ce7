"""List rules: every right answer and no other, and closed forms by enumeration."""

import itertools
import math
import random

import pytest

from experiments.benchmarks import list_rules
from experiments.benchmarks.list_rules import Case
from models.errors import DataError

ITEMS = ("b", "c", "a")
RIGHT = {  # of ITEMS with the word x and the index 1, or repeated twice, by hand
    "copy": {"bca"},
    "reverse": {"acb"},
    "sort": {"abc"},
    "shuffle": {"bac", "abc", "acb", "cab", "cba"},
    "insert_index": {"bxca"},
    "insert_random": {"xbca", "bxca", "bcxa", "bcax"},
    "remove_index": {"ba"},
    "remove_random": {"ca", "ba", "bc"},
    "replace_index": {"bxa"},
    "replace_random": {"xca", "bxa", "bcx"},
    "repeat_each": {"bbccaa"},
    "repeat_list": {"bcabca"},
}


def case(rule: str) -> Case:
    how = list_rules.RULES[rule]
    number = -1 if how.numbers is None else 1 + rule.startswith("repeat")
    return Case(rule, ITEMS, "x" if how.takes_word else "", number, ())


@pytest.mark.parametrize("rule", list_rules.RULES)
def test_all_right_answers_and_no_others(rule):
    """Every list of at most four of a, b, c, x and y is judged."""
    lists = [t for n in range(5) for t in itertools.product("abcxy", repeat=n)]
    lists += [tuple(text) for text in RIGHT[rule]]
    found = {"".join(t) for t in lists if list_rules.is_right(case(rule), t)}
    assert found == RIGHT[rule]
    every = ["".join(answer) for answer in list_rules.answers(case(rule))]
    assert len(every) == len(RIGHT[rule]) and {*every} == RIGHT[rule]
    assert list_rules.answer_size(rule, 3) == max(
        *(len(text) for text in every), 15 if rule.startswith("repeat") else 0
    )


@pytest.mark.parametrize("rule", list_rules.RULES)
def test_drawn_answers_pass(rule):
    """Planted: the answer of the case before, which never passes."""
    drawn = list_rules.cases(rule, 60, 3)
    assert drawn == list_rules.cases(rule, 60, 3) != list_rules.cases(rule, 60, 4)
    assert all(list_rules.is_right(c, c.answer) for c in drawn)
    assert {len(c.items) for c in drawn} == {*list_rules.LENGTHS}
    assert all(len({*c.items, c.word}) == len(c.items) + 1 for c in drawn)
    others = itertools.pairwise(drawn)
    assert not any(list_rules.is_right(c, d.answer) for c, d in others)


def test_the_identity_is_no_shuffle():
    """Planted: a check of the items alone takes it."""
    drawn = list_rules.cases("shuffle", 200, 0, (2, 3))
    assert not any(list_rules.is_right(c, c.items) for c in drawn)
    alone = lambda c, items: sorted(items) == sorted(c.items)
    assert all(alone(c, c.items) and alone(c, c.answer) for c in drawn)
    twos = [c for c in drawn if len(c.items) == 2]
    assert twos and all(c.answer == c.items[::-1] for c in twos)


def uniform(law: dict[tuple, float], chosen: dict[int, str], place: int) -> dict:
    """The law of a place given what was chosen, by enumeration."""
    fits = {t: p for t, p in law.items() if all(t[i] == x for i, x in chosen.items())}
    total, found = sum(fits.values()), {}
    for text, p in fits.items():
        found[text[place]] = found.get(text[place], 0.0) + p / total
    return found


def drawn_in_steps(law: dict, steps: list[list[int]], right: set) -> float:
    """The mass of `right`, where the places of a step are drawn independently."""

    def go(chosen: dict[int, str], left: list[list[int]]) -> float:
        if not left:
            return float(tuple(chosen[i] for i in sorted(chosen)) in right)
        laws = [uniform(law, chosen, place) for place in left[0]]
        mass = 0.0
        for items in itertools.product(*laws):
            p = math.prod(law[item] for law, item in zip(laws, items))
            mass += p * go({**chosen, **dict(zip(left[0], items))}, left[1:])
        return mass

    return go({}, steps)


@pytest.mark.parametrize("steps", [[[0, 1, 2, 3]], [[3, 1], [0, 2]], [[2], [0, 1, 3]]])
def test_closed_forms_of_steps(steps):
    """Planted: a shuffle's whole mass, with the identity's."""
    items, counts = "abcd", [len(step) for step in steps]
    orders = [*itertools.permutations(items)]
    law = dict.fromkeys(orders, 1 / len(orders))
    own = list_rules.shuffle_accuracy(counts)
    try_ = lambda right: drawn_in_steps(law, steps, right)
    assert own == pytest.approx(try_({*orders} - {tuple(items)}))
    assert own != pytest.approx(try_({*orders}))
    places = [list_rules.replaced(tuple(items), "x", i) for i in range(4)]
    law = dict.fromkeys(places, 1 / 4)
    found = drawn_in_steps(law, steps, {*places})
    assert list_rules.replace_accuracy(counts) == pytest.approx(found)


@pytest.mark.parametrize("n", [3, 5, 6])
def test_closed_forms_of_one_shot_and_of_one_a_step(n):
    shuffle, replace = list_rules.shuffle_accuracy, list_rules.replace_accuracy
    assert shuffle([n]) == pytest.approx((math.factorial(n) - 1) / n**n)
    assert replace([n]) == pytest.approx((1 - 1 / n) ** (n - 1))
    assert shuffle([1] * n) == pytest.approx(1 - 1 / math.factorial(n))
    assert replace([1] * n) == pytest.approx(1)


@pytest.mark.parametrize("rule", list_rules.LISTS)
def test_independent_tokens(rule):
    """One shot by products of marginals; single answers have no correlation.

    Planted: the exact law, whose mass of right answers is 1 for every rule.
    """
    right = list_rules.answers(case(rule))
    law = dict.fromkeys(right, 1 / len(right))
    places = [[*range(len(right[0]))]]
    mass = list_rules.one_shot(right)
    assert mass == pytest.approx(drawn_in_steps(law, places, {*right}))
    assert (mass < 0.99) == (list_rules.total_correlation(right) > 0.1)
    assert (mass < 0.99) == (len(right) > 1)
    if rule == "replace_random":
        assert mass == pytest.approx(4 / 9)
        entropy = 3 * (math.log(3) - 2 / 3 * math.log(2)) - math.log(3)
        assert list_rules.total_correlation(right) == pytest.approx(entropy)


def test_refusals():
    rng = random.Random(0)
    with pytest.raises(DataError, match="'sorted' is no list rule"):
        list_rules.draw("sorted", rng)
    for length in (1, 26):
        with pytest.raises(DataError, match="use 2 or more, less than words"):
            list_rules.draw("sort", rng, (length,))
