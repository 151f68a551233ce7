"""Countdown: the checker by hand and by brute force, and the reward of a step."""

import itertools
import json
import random

import pytest

from models.errors import DataError
from training.data import generated_problems
from training.data.problems import countdown
from training.data.problems.countdown import Problem

HAND = Problem((15, 44, 79), 50)
ANSWER = "44-15=29\n79-29=50\n"


def trees(numbers: tuple[int, ...]):
    """Yield every result of every expression tree over the numbers in their order."""
    if len(numbers) == 1:
        yield numbers[0]
    for cut in range(1, len(numbers)):
        for a in trees(numbers[:cut]):
            for b in trees(numbers[cut:]):
                yield a + b
                yield a * b
                if a >= b:
                    yield a - b
                if b and a % b == 0:
                    yield a // b


def reached(numbers: tuple[int, ...]) -> set[int]:
    """Brute force, without the module's steps: all trees of all orders."""
    orders = itertools.permutations(numbers)
    return {result for order in orders for result in trees(order)}


def disagreements(solvable) -> int:
    """Count problems that `solvable` and brute force judge differently.

    All multisets of three numbers to 6, and 30 of four, with every target to 40.
    """
    rng = random.Random(0)
    some = [*itertools.combinations_with_replacement(range(7), 3)]
    some += [tuple(rng.randint(0, 20) for _ in range(4)) for _ in range(30)]
    wrong = 0
    for numbers in some:
        all_results = reached(numbers)
        for target in range(41):
            wrong += solvable(numbers, target) != (target in all_results)
    return wrong


def test_solvable_is_brute_force():
    assert disagreements(countdown.solvable) == 0


def test_fault_solvable_in_the_given_order():
    """Planted: numbers joined from left to right alone, and unused ones allowed."""

    def in_order(numbers, target):
        results = {numbers[0]}
        for number in numbers[1:]:
            steps = (countdown.results(a, number) for a in results)
            results = {result for step in steps for _, result in step}
        return target in results

    def partly(numbers, target):
        sizes = range(1, len(numbers) + 1)
        parts = (p for n in sizes for p in itertools.combinations(numbers, n))
        return any(countdown.solvable(part, target) for part in parts)

    assert disagreements(in_order) > 0 and disagreements(partly) > 0


def test_check_by_hand():
    assert countdown.check(HAND, ANSWER)
    assert countdown.check(HAND, ANSWER.removesuffix("\n"))
    assert countdown.check(HAND, "15+79=94\n94-44=50")  # another solution
    assert countdown.check(Problem((8, 0, 4), 4), "0/8=0\n0+4=4\n")


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "\n",
        "44-15=29\n",  # a number is left
        "44-15=29\n79-29=51\n",  # a wrong sum
        "44-15=29\n79-15=64\n",  # a number taken twice
        "44-15=29\n79-29=50\n\n",
        "44-15=29\n\n79-29=50\n",
        "44-15=29\n79-29=50\n50-0=50\n",
        "44 - 15=29\n79-29=50\n",
        "044-15=29\n79-29=50\n",
        "44-15=29\n79-29=5٠\n",  # a digit that int() reads
        "15-44=-29\n79+-29=50\n",
        "79-50=29\n44-29=15\n",  # the target is no number of the problem
        ANSWER + "79",
    ],
)
def test_check_refuses(answer):
    """Planted: each answer breaks one rule."""
    assert not countdown.check(HAND, answer)


def test_divisions_are_exact():
    halves = Problem((7, 2, 3), 6)
    assert countdown.take_step((7, 2, 3), "7/2=3") is None
    assert not countdown.check(halves, "7/2=3\n3+3=6\n")
    assert countdown.take_step((5, 0), "5/0=0") is None
    assert countdown.take_step((5, 0), "5*0=0") == (0,)


def test_step_reward_falls_where_the_problem_becomes_unsolvable():
    """At every prefix of every text of valid steps, against brute force."""
    problem = Problem((2, 3, 5), 4)

    def texts(numbers, done):
        yield numbers, done
        for pair in itertools.combinations(range(len(numbers)), 2):
            for step, result in countdown.results(*(numbers[i] for i in pair)):
                rest = [n for i, n in enumerate(numbers) if i not in pair]
                yield from texts((*rest, result), f"{done}{step}={result}\n")

    values, always = [], []
    for numbers, text in texts(problem.numbers, ""):
        expected = float(problem.target in reached(numbers))
        for unfinished in ("", "9", "9+", "9+9=1"):  # the last line does not count
            assert countdown.step_reward(problem, text + unfinished) == expected
        values.append(expected)
        if countdown.check(problem, text):
            always += [
                countdown.step_reward(problem, text[:i]) for i in range(len(text))
            ]
    assert set(always) == {1.0}  # on the way to a solution it never falls
    # Planted: a reward that only counts valid steps would be 1 at all of them.
    assert 0 < sum(values) < len(values)


def test_step_reward_by_hand():
    assert countdown.step_reward(HAND, "") == 1
    assert countdown.step_reward(HAND, "44-15=29\n") == 1
    assert countdown.step_reward(HAND, "44+15=59\n") == 0  # 79, 59: never 50
    assert countdown.step_reward(HAND, "44-15=28\n") == 0  # no valid step
    assert countdown.step_reward(HAND, "44-15=28") == 1  # not yet finished
    assert countdown.step_reward(HAND, ANSWER) == 1
    assert countdown.step_reward(HAND, ANSWER + "50-0=50\n") == 0
    assert countdown.step_reward(Problem((1, 1), 50), "") == 0


def test_drawn_solutions_check():
    drawn = [*generated_problems.take(countdown.draw, "train", 2000)]
    assert all(countdown.check(p, p.answer) for p in drawn)
    assert {len(p.numbers) for p in drawn} == set(countdown.SIZES)
    assert {p.target for p in drawn} <= set(countdown.TARGETS)
    assert {c for p in drawn for c in p.answer} == set("0123456789+-*/=\n")
    # Planted: answers of other problems.
    others = itertools.pairwise(drawn)
    assert not any(countdown.check(p, q.answer) for p, q in others)


def test_read_is_the_inverse():
    problem, answer = countdown.read(HAND.prompt + ANSWER)
    assert (problem, answer) == (HAND, ANSWER)
    for text in ("", "15,44,79\n", "15:50\n", "15,44,79:50", "a" + HAND.prompt):
        with pytest.raises(DataError, match="begins with no problem"):
            countdown.read(text)


def test_published_layouts(tmp_path):
    """Steps or a target as `output`, our texts, and a table for 24."""
    rows = [
        {"text": HAND.prompt + ANSWER},
        {"input": "15,44,79,50", "output": "44-15=29,79-29=50"},
        {"input": "15,44,79", "output": "50"},
    ]
    file, table = tmp_path / "a.jsonl", tmp_path / "b.csv"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert countdown.read_file(str(file)) == [HAND] * 3
    table.write_text("Rank,Puzzles\n1,1 1 4 6\n")
    assert countdown.read_file(str(table)) == [Problem((1, 1, 4, 6), 24)]
    for fault in ('{"input": "1,2", "output": "x"}', "{", "[]", '{"text": 3}'):
        file.write_text(f"{fault}\n")
        with pytest.raises(DataError, match=r"a\.jsonl, line 1: no problem"):
            countdown.read_file(str(file))
    for missing in ("c.csv", "c.jsonl"):
        with pytest.raises(DataError, match="not a readable UTF-8 file"):
            countdown.read_file(str(tmp_path / missing))


@pytest.mark.parametrize("numbers", [(), (1,), (1,) * 7])
def test_too_few_or_too_many_numbers(numbers):
    with pytest.raises(DataError, match="numbers"):
        Problem(numbers, 10)
