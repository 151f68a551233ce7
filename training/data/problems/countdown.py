"""Countdown: reach a target from a few numbers with + - * /, one step a line.

A text gives the numbers, the target, and a solution:

    15,44,79:50
    44-15=29
    79-29=50

A step puts the result of two numbers in their place, so that all numbers are used.
Results are whole and at least 0, hence divisions leave no remainder.
"""

import csv
import functools
import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from models.errors import DataError
from models.text import row_files
from training.data import sources

SIZES = (3, 4)  # numbers of a drawn problem
LARGEST = 25  # of a drawn problem's numbers
TARGETS = range(10, 100)
RESULTS = 99  # largest result of a drawn solution; others may be larger
MOST = 6  # numbers: six take seconds where no solution exists

PROMPT = re.compile(r"(\d+(?:,\d+)+):(\d+)\n")
STEP = re.compile(r"(\d+)([-+*/])(\d+)=(\d+)")


@dataclass(frozen=True)
class Problem:
    """Numbers in the order of the prompt, the target, and the lines of a solution."""

    numbers: tuple[int, ...]
    target: int
    steps: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        if not 2 <= len(self.numbers) <= MOST:
            raise DataError(
                f"{len(self.numbers)} numbers {self.numbers}: use 2 to {MOST}"
            )
        if min(*self.numbers, self.target) < 0:
            raise DataError(f"{self.prompt!r}: use numbers of at least 0")

    @property
    def prompt(self) -> str:
        return f"{','.join(map(str, self.numbers))}:{self.target}\n"

    @property
    def answer(self) -> str:
        return "".join(f"{step}\n" for step in self.steps)

    @property
    def key(self) -> str:
        """Identify the problem, whatever the order of its numbers."""
        return f"{sorted(self.numbers)} {self.target}"


def draw(rng: random.Random, sizes: Sequence[int] = SIZES) -> Problem:
    """Draw numbers and steps until the last result is a target."""
    while True:
        numbers = tuple(rng.randint(1, LARGEST) for _ in range(rng.choice(sizes)))
        left, steps = list(numbers), []
        while len(left) > 1 and max(left) <= RESULTS:
            rng.shuffle(left)
            step, result = rng.choice([*results(left.pop(), left.pop())])
            left.append(result)
            steps.append(f"{step}={result}")
        if len(left) == 1 and left[0] in TARGETS:
            return Problem(numbers, left[0], tuple(steps))


def results(a: int, b: int) -> Iterator[tuple[str, int]]:
    """Yield each step of two numbers, the larger first, and its result."""
    a, b = max(a, b), min(a, b)
    yield f"{a}+{b}", a + b
    yield f"{a}-{b}", a - b
    yield f"{a}*{b}", a * b
    if b and a % b == 0:
        yield f"{a}/{b}", a // b


def solvable(numbers: Sequence[int], target: int) -> bool:
    """Decide by exhaustive search whether the numbers, all used, give the target.

    Raises `DataError` for more than `MOST` numbers.
    """
    if not 1 <= len(numbers) <= MOST:
        raise DataError(f"{len(numbers)} numbers: use 1 to {MOST}")
    return _solvable(tuple(sorted(numbers)), target)


@functools.lru_cache(maxsize=1 << 18)
def _solvable(numbers: tuple[int, ...], target: int) -> bool:
    if len(numbers) == 1:
        return numbers[0] == target
    for j in range(1, len(numbers)):
        for i in range(j):
            rest = numbers[:i] + numbers[i + 1 : j] + numbers[j + 1 :]
            for result in {result for _, result in results(numbers[i], numbers[j])}:
                if _solvable(tuple(sorted((*rest, result))), target):
                    return True
    return False


def take_step(numbers: Sequence[int], line: str) -> tuple[int, ...] | None:
    """Return the numbers after a step's line; None where it is no valid step."""
    match = STEP.fullmatch(line)
    if match is None:
        return None
    texts = match.group(1, 3, 4)
    a, b, result = map(int, texts)
    if texts != (str(a), str(b), str(result)):  # leading zeros, other digits
        return None
    left = list(numbers)
    for number in (a, b):
        if number not in left:
            return None
        left.remove(number)
    value = {"+": a + b, "-": a - b, "*": a * b}.get(match[2])
    if value is None:
        value = a // b if b and a % b == 0 else -1
    return (*left, result) if result == value else None


def check(problem: Problem, text: str) -> bool:
    """Check an answer: every line a valid step, and only the target left."""
    left = _left(problem, text.removesuffix("\n").split("\n"))
    return left == (problem.target,)


def step_reward(problem: Problem, prefix: str) -> float:
    """Return 1 while the numbers left by an answer's finished lines reach the target.

    A line is finished by its newline. After a line that is no valid step it is 0.
    """
    left = _left(problem, prefix.split("\n")[:-1])
    return float(left is not None and solvable(left, problem.target))


def _left(problem: Problem, lines: Sequence[str]) -> tuple[int, ...] | None:
    left: tuple[int, ...] | None = problem.numbers
    for line in lines:
        left = take_step(left, line) if left is not None else None
    return left


def read(text: str) -> tuple[Problem, str]:
    """Split a text into its problem and the answer; DataError where it has none."""
    match = PROMPT.match(text)
    if match is None:
        raise DataError(f"{text[:40]!r} begins with no problem such as '3,5,7:15'")
    numbers = tuple(map(int, match[1].split(",")))
    return Problem(numbers, int(match[2])), text[match.end() :]


def read_file(path: str) -> list[Problem]:
    """Read the problems of a file in one of four layouts, without their solutions.

    A row of JSONL has `text` (as above), or `input` and `output`: "3,5,7,15" and steps,
    or "3,5,7" and "15". A .csv file has numbers under `Puzzles`, for the target 24.

    Raises:
        DataError: a row of another layout, named by its place.
    """
    if path.endswith(".csv"):
        table = csv.DictReader(sources.file_text(path).splitlines())
        rows = [(f"{path}, row {i}", json.dumps(row)) for i, row in enumerate(table, 1)]
    else:
        rows = [*row_files.lines(path)]
    return [_problem(where, line) for where, line in rows]


def _problem(where: str, line: str) -> Problem:
    try:
        row = json.loads(line)
        if "text" in row:
            return read(row["text"])[0]
        if "Puzzles" in row:
            return Problem(tuple(map(int, row["Puzzles"].split())), 24)
        numbers = [int(text) for text in row["input"].split(",")]
        target = numbers.pop() if "=" in row["output"] else int(row["output"])
        return Problem(tuple(numbers), target)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{where}: no problem under text, input and output, or Puzzles ({error})"
        ) from error
