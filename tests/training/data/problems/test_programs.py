"""Programs: the evaluator against Python's own, the checker, and hostile candidates."""

import itertools
import random

import pytest

from models.errors import DataError
from training.data import generated_problems
from training.data.problems import programs
from training.data.problems.programs import Problem

LISTS = ((3, 1, 2), (4, 0, 7, 4), (5, 9), (2, 2), (1, 8, 8), (6, 0), (7, 7, 1), (9, 3))
SUM = Problem(tuple((x, sum(x)) for x in LISTS), "sum(x)\n")


def drawn() -> list[Problem]:
    return [*generated_problems.take(programs.draw, "train", 300)]


def by_python(text: str, x) -> object:
    """Evaluate an expression of the tests' own, or of the grammar, by Python."""
    return eval(text, {"x": list(x)})


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "x[-2]",
        "x[1:-1]",
        "x[::-2]",
        "x[-1:0:-1]",
        "-x[0]-x[1]*2",
        "sum(x)//3",
        "-sum(x)//4",
        "-sum(x)%4",
        "sum(x)%-4",
        "(max(x)-min(x))*len(x)",
        "sorted(x)[len(x)//2]",
        "[b*b-1 for b in x if b!=2]",
        "[a+sum(x) for a in sorted(x)[::-1]]",
        "len([a for a in x if a>=sum(x)//len(x)])",
        "[len([b for b in x if b<=a]) for a in x]",
        "0x10+1_000",
    ],
)
def test_values_are_those_of_python(text):
    for x in LISTS:
        assert programs.run(text, x) == by_python(text, x)


def test_drawn_programs_are_those_of_python():
    """The examples, and the answers' checks; planted: answers of other problems."""
    some = drawn()
    for problem in some:
        assert programs.check(problem, problem.answer)
        assert programs.public_reward(problem, problem.answer) == 1
        for x, y in problem.examples:
            assert by_python(problem.answer, x) == y
    wrong = [programs.check(p, q.answer) for p, q in itertools.pairwise(some)]
    assert sum(wrong) < len(wrong) / 10
    assert max(len(p.answer) for p in some) <= programs.LONGEST


@pytest.mark.parametrize(
    "text",
    [
        "",
        " sum(x)",
        "sum(x) ",
        "sum(x)\n",
        "sum(x",
        "y",
        "True",
        "1.5",
        "'a'",
        "[1,2]",
        "(1,2)",
        "x+x",
        "x*2",
        "sum(1)",
        "len(sum(x))",
        "sum(x,x)",
        "sum(*x)",
        "sorted(x,reverse=1)",
        "abs(x)",
        "x.append(1)",
        "x.__class__",
        "__import__('os')",
        "[].__class__.__mro__",
        "(lambda: 1)()",
        "(y:=1)",
        "x[0]>1",
        "1 if x else 2",
        "x[9]",
        "x[-9]",
        "x[::0]",
        "x[x]",
        "x[0][0]",
        "1//0",
        "1%0",
        "max(x[9:])",
        "9**9",
        "1<<9",
        "9" * 80,
        "99999*99999*99999",
        "[a for a in x for b in x]",
        "[a for a in x if a]",
        "[a for a in x if a if a]",
        "[a for a in x if 0<a<3]",
        "[a for a,b in x]",
        "[x for a in x]",
        "{a for a in x}",
        "(a for a in x)",
        "f'{x}'",
        "x\0",
        "(" * 40 + "x" + ")" * 40,
        "ｘ",
        "sum(x)#" + "a" * 80,
    ],
)
def test_candidates_outside_the_grammar(text):
    """None of them has a value, and none raises anything else."""
    with pytest.raises(programs.Invalid):
        programs.run(text, (3, 1, 2))
    assert not programs.passes(text, ((3, 1, 2), 0))


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
def test_random_texts_raise_nothing_else():
    """3,000 cuttings of valid candidates, in a random order: seed 0."""
    rng = random.Random(0)
    parts = [p.answer.strip() for p in drawn()[:60]]
    valid = 0
    for _ in range(3000):
        a, b = rng.choice(parts), rng.choice(parts)
        text = a[: rng.randint(0, len(a))] + b[rng.randint(0, len(b)) :]
        try:
            value = programs.run(text, (3, 1, 2))
        except programs.Invalid:
            continue
        valid += 1
        assert value == by_python(text, (3, 1, 2))
    assert 100 < valid < 2900


def test_check_by_hand():
    """Three public and five hidden examples."""
    assert programs.check(SUM, "sum(x)") and programs.check(SUM, "sum(sorted(x))\n")
    assert not programs.check(SUM, "sum(x)\n\n") and not programs.check(SUM, "")
    one = "x[0]+3"  # right for (3, 1, 2) alone
    assert programs.public_reward(SUM, one) == pytest.approx(1 / 3)
    assert not programs.check(SUM, one)


def test_hidden_examples_count():
    """Planted: one of the hidden outputs is another, the public ones are the same."""
    for hidden in range(3, 8):
        examples = [*SUM.examples]
        x, y = examples[hidden]
        examples[hidden] = (x, y + 1)
        other = Problem(tuple(examples))
        assert other.prompt == SUM.prompt
        assert programs.public_reward(other, "sum(x)") == 1
        assert not programs.check(other, "sum(x)")


def test_lists_are_not_numbers():
    assert not programs.passes("x", ((1,), 1)) and programs.passes("x", ((1,), [1]))


def test_every_operation_of_a_drawn_program_counts():
    """Planted: an operation that sorting makes idle."""
    idle = programs._idle
    assert idle(["sorted({})", "max({})"]) and idle(["{}[::-1]", "sorted({})"])
    assert not idle(["sorted({})", "{}[0]"][:1]) and not idle(["[a*2 for a in {}]"])
    for problem in drawn():
        assert problem.answer not in ("x\n", "max(sorted(x))\n")


def test_equal_programs_have_equal_keys():
    same = [Problem((), f"{text}\n").key for text in ("x[0]", "x[:1][0]", "min(x[:1])")]
    assert len(set(same)) == 1
    assert Problem((), "min(x)\n").key not in same


def test_read_is_the_inverse():
    problem, answer = programs.read(SUM.prompt + SUM.answer)
    assert problem.examples == SUM.examples[:3] and answer == SUM.answer
    two = "".join(SUM.prompt.splitlines(keepends=True)[:2])
    for text in ("", two, two + "sum(x)\n", two + "[01]->1\n", two + "[]->1\n"):
        with pytest.raises(DataError, match=r"\[1,2\]->3"):
            programs.read(text)
