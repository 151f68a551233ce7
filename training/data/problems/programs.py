"""Programs: a Python expression in x from what it gives for a few lists.

A text gives three examples and, after them, an expression:

    [3,1,2]->6
    [4,0,7,4]->15
    [5,9]->14
    sum(x)

Five more examples are hidden. Candidates are parsed, never executed as Python: `run`
evaluates a few forms of expressions, in which no list grows, on whole numbers.
"""

import ast
import functools
import json
import random
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from models.errors import DataError

PUBLIC, HIDDEN = 3, 5
DEPTHS = (1, 2, 2, 3, 3, 3)  # operations of a drawn expression, equally often
LENGTHS = range(2, 6)  # of a drawn list
DIGITS = range(10)  # its numbers
RESULTS = 999  # largest magnitude in a drawn example
LONGEST = 80  # characters of a candidate
LARGEST = 10**9  # magnitude of any number while a candidate runs
PROBES = 24  # lists on which equal outputs make two programs one

Value = int | list[int]
Example = tuple[tuple[int, ...], Value]
LINE = re.compile(r"\[\d+(?:,\d+)*\]->(-?\d+|\[(-?\d+(,-?\d+)*)?\])")


@dataclass(frozen=True)
class Problem:
    """Examples of an expression, the public ones first, and the expression."""

    examples: tuple[Example, ...]
    answer: str = field(default="", compare=False)  # ends with a newline

    @property
    def prompt(self) -> str:
        lines = (f"{_text(x)}->{_text(y)}\n" for x, y in self.examples[:PUBLIC])
        return "".join(lines)

    @property
    def key(self) -> str:
        """Identify the program by its outputs on fixed lists."""
        return behaviour(self.answer.strip())


def _text(value: Value | tuple[int, ...]) -> str:
    if isinstance(value, int):
        return str(value)
    return f"[{','.join(map(str, value))}]"


class Invalid(Exception):
    """A candidate outside the grammar, or one that fails on its input."""


def run(text: str, x: Sequence[int]) -> Value:
    """Evaluate an expression for the list x; raise `Invalid` where it has no value."""
    return _value(parse(text), {"x": list(x)})


@functools.lru_cache(maxsize=4096)
def parse(text: str) -> ast.expr:
    """Parse a candidate as one Python expression; raise `Invalid` where it is none."""
    if len(text) > LONGEST or text != text.strip() or not text.isascii():
        raise Invalid(f"not an ASCII line of at most {LONGEST} characters")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of literals such as `1or 2`
            return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Invalid(str(error)) from error


def _divided(a: int, b: int) -> int:
    if b == 0:
        raise Invalid("a division by zero")
    return a // b


ARITHMETIC: dict[type, Callable[[int, int], int]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: _divided,
    ast.Mod: lambda a, b: a - b * _divided(a, b),
}
COMPARISONS: dict[type, Callable[[int, int], bool]] = {
    ast.Gt: lambda a, b: a > b,
    ast.Lt: lambda a, b: a < b,
    ast.GtE: lambda a, b: a >= b,
    ast.LtE: lambda a, b: a <= b,
    ast.Eq: lambda a, b: a == b,
    ast.NotEq: lambda a, b: a != b,
}
FUNCTIONS: dict[str, Callable[[list[int]], Value]] = {
    "sum": sum,
    "max": max,
    "min": min,
    "len": len,
    "sorted": sorted,
}


def _value(node: ast.expr | None, names: dict[str, Value]) -> Any:
    """Evaluate a node; lists are never longer than x, numbers never over LARGEST."""
    match node:
        case ast.Constant(value=int() as number) if not isinstance(number, bool):
            return _small(number)
        case ast.Name(id=name) if name in names:
            return names[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _small(-_number(operand, names))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in ARITHMETIC:
            a, b = _number(left, names), _number(right, names)
            return _small(ARITHMETIC[type(op)](a, b))
        case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]):
            if name not in FUNCTIONS:
                raise Invalid(f"the function {name}")
            items = _list(argument, names)
            if not items and name in ("max", "min"):
                raise Invalid(f"{name} of an empty list")
            value = FUNCTIONS[name](items)
            return _small(value) if isinstance(value, int) else value
        case ast.Subscript(value=inner, slice=ast.Slice() as part):
            bounds = (part.lower, part.upper, part.step)
            places = [None if b is None else _number(b, names) for b in bounds]
            if places[2] == 0:
                raise Invalid("a step of zero")
            return _list(inner, names)[slice(*places)]
        case ast.Subscript(value=inner, slice=index):
            items, place = _list(inner, names), _number(index, names)
            if not -len(items) <= place < len(items):
                raise Invalid("an index outside its list")
            return items[place]
        case ast.ListComp(elt=element, generators=[ast.comprehension() as loop]):
            return [*_items(element, loop, names)]
    raise Invalid(f"{type(node).__name__} is outside the grammar")


def _items(element: ast.expr, loop: Any, names: dict[str, Value]) -> Iterator[int]:
    """Evaluate `element for a in list if comparison`."""
    if loop.is_async or not isinstance(loop.target, ast.Name) or len(loop.ifs) > 1:
        raise Invalid("a comprehension of another form")
    for item in _list(loop.iter, names):
        inner = {**names, loop.target.id: item}
        if all(_holds(condition, inner) for condition in loop.ifs):
            yield _number(element, inner)


def _holds(node: ast.expr, names: dict[str, Value]) -> bool:
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            if type(op) in COMPARISONS:
                a, b = _number(left, names), _number(right, names)
                return COMPARISONS[type(op)](a, b)
    raise Invalid("a condition that is no comparison of two numbers")


def _small(number: int) -> int:
    if abs(number) > LARGEST:
        raise Invalid(f"a number over {LARGEST}")
    return number


def _number(node: ast.expr, names: dict[str, Value]) -> int:
    value = _value(node, names)
    if not isinstance(value, int):
        raise Invalid("a list where a number belongs")
    return value


def _list(node: ast.expr, names: dict[str, Value]) -> list[int]:
    value = _value(node, names)
    if not isinstance(value, list):
        raise Invalid("a number where a list belongs")
    return value


def passes(text: str, example: Example) -> bool:
    """Check whether an expression gives an example's output."""
    x, expected = example
    try:
        return run(text, x) == expected
    except Invalid:
        return False


def public_reward(problem: Problem, text: str) -> float:
    """Return the share of the public examples that an answer passes."""
    expression = text.removesuffix("\n")
    return sum(passes(expression, e) for e in problem.examples[:PUBLIC]) / PUBLIC


def check(problem: Problem, text: str) -> bool:
    """Check an answer, one line, against all examples, the hidden ones included."""
    expression = text.removesuffix("\n")
    return all(passes(expression, example) for example in problem.examples)


def draw_list(rng: random.Random) -> tuple[int, ...]:
    """Draw a list of digits."""
    return tuple(rng.choice(DIGITS) for _ in range(rng.choice(LENGTHS)))


@functools.cache
def _probes() -> tuple[tuple[int, ...], ...]:
    rng = random.Random(0)
    return tuple(draw_list(rng) for _ in range(PROBES))


@functools.lru_cache(maxsize=1 << 16)
def behaviour(text: str) -> str:
    """Write an expression's outputs on fixed lists; "-" where it has none."""
    outputs = []
    for x in _probes():
        try:
            outputs.append(_text(run(text, x)))
        except Invalid:
            outputs.append("-")
    return " ".join(outputs)


LISTS = (
    "sorted({})",
    "{}[::-1]",
    "{}[1:]",
    "{}[:-1]",
    "{}[::2]",
    "[a+K for a in {}]",
    "[a-K for a in {}]",
    "[a*K for a in {}]",
    "[a*a for a in {}]",
    "[a//K for a in {}]",
    "[a%K for a in {}]",
    "[a for a in {} if a>K]",
    "[a for a in {} if a<K]",
    "[a for a in {} if a%2==0]",
    "[a for a in {} if a%2==1]",
)
REDUCTIONS = ("sum({})", "max({})", "min({})", "len({})", "{}[0]", "{}[-1]")
ARITHMETIC_FORMS = ("{}+K", "{}-K", "{}*K")


def draw_forms(rng: random.Random) -> list[str]:
    """Draw the operations of an expression, each on the one before it."""
    depth = rng.choice(DEPTHS)
    last = (REDUCTIONS, ARITHMETIC_FORMS)[: rng.randint(0, min(2, depth))]
    kinds = (*[LISTS] * (depth - len(last)), *last)
    return [rng.choice(kind).replace("K", str(rng.randint(1, 9))) for kind in kinds]


def expression(forms: Sequence[str]) -> str:
    """Write operations as one expression in x."""
    return functools.reduce(lambda text, form: form.replace("{}", text), forms, "x")


def _idle(forms: Sequence[str]) -> bool:
    """Check whether an expression without one of its operations does the same."""
    outputs = behaviour(expression(forms))
    shorter = ([*forms[:i], *forms[i + 1 :]] for i in range(len(forms)))
    return any(behaviour(expression(rest)) == outputs for rest in shorter)


def draw(rng: random.Random) -> Problem:
    """Draw an expression and examples until they are of use.

    No operation is idle, and every example has an output of at most `RESULTS`. The
    inputs of the public ones differ, and so do two of their outputs.
    """
    while True:
        forms = draw_forms(rng)
        inputs = [draw_list(rng) for _ in range(PUBLIC + HIDDEN)]
        text = expression(forms)
        try:
            examples = tuple((x, run(text, x)) for x in inputs)
        except Invalid:
            continue
        numbers = [n for _, y in examples for n in (y if isinstance(y, list) else [y])]
        shown = examples[:PUBLIC]
        if (
            max(map(abs, numbers), default=0) <= RESULTS
            and len({x for x, _ in shown}) == PUBLIC
            and len({_text(y) for _, y in shown}) > 1
            and not _idle(forms)
        ):
            return Problem(examples, f"{text}\n")


def read(text: str) -> tuple[Problem, str]:
    """Split a text into its public examples and the answer.

    Raises:
        DataError: the text does not begin with examples.
    """
    lines = text.split("\n", PUBLIC)
    if len(lines) <= PUBLIC or not all(LINE.fullmatch(x) for x in lines[:PUBLIC]):
        raise DataError(f"{text[:40]!r} begins with no {PUBLIC} examples of '[1,2]->3'")
    examples = []
    for line in lines[:PUBLIC]:
        x, _, y = line.partition("->")
        try:
            examples.append((tuple(json.loads(x)), json.loads(y)))
        except ValueError as error:
            raise DataError(f"{line!r} is no example of '[1,2]->3'") from error
    return Problem(tuple(examples)), lines[PUBLIC]


def read_file(path: str) -> list[Problem]:
    """Raise `DataError`: public examples alone do not identify a program."""
    raise DataError(f"{path}: programs have no public test to exclude")
