"""List rules: small tasks on lists, their exact checks, and what one shot must lose.

Kang et al., *ParallelBench: Understanding the Trade-offs of Parallel Decoding in
Diffusion LLMs*, 2025, arXiv 2510.04767, section 4 and its "waiting line".

    draw(rule, rng) -> Case;   is_right(case, items) -> bool;   answers(case) -> all

Copy, reverse, sort and the rules with an index have one answer, so that its tokens do
not depend on one another. The others have several. Whoever draws the tokens of such an
answer independently mixes them up, with the probabilities of `one_shot`,
`shuffle_accuracy` and `replace_accuracy`.
"""

import collections
import itertools
import math
import random
import string
from collections.abc import Callable, Sequence
from typing import NamedTuple

from models.errors import DataError

LETTERS = tuple(string.ascii_lowercase)
LENGTHS = (3, 4, 5, 6)
COUNTS = (2, 3, 4, 5)  # of the repeat rules
Items = tuple[str, ...]


class Case(NamedTuple):
    """A list and what to do with it.

    Attributes:
        rule: of `RULES`.
        items: the list, all different.
        word: to insert or to put in place of an item, not in the list; "": none.
        number: an index from 0, or how often to repeat; -1: none.
        answer: one right answer.
    """

    rule: str
    items: Items
    word: str
    number: int
    answer: Items


class Rule(NamedTuple):
    """A rule.

    Attributes:
        answers: (items, word, number) -> all right answers, each once.
        takes_word: whether a case has a word.
        numbers: items -> the numbers of a case; None: a case has none.
    """

    answers: Callable[[Items, str, int], list[Items]]
    takes_word: bool = False
    numbers: Callable[[Items], Sequence[int]] | None = None


def inserted(items: Items, word: str, index: int) -> Items:
    """Return the list with the word before the item of an index."""
    return (*items[:index], word, *items[index:])


def removed(items: Items, index: int) -> Items:
    """Return the list without the item of an index."""
    return (*items[:index], *items[index + 1 :])


def replaced(items: Items, word: str, index: int) -> Items:
    """Return the list with the word in place of the item of an index."""
    return (*items[:index], word, *items[index + 1 :])


def shuffles(items: Items) -> list[Items]:
    """Return all orders of a list but its own."""
    return [order for order in itertools.permutations(items) if order != items]


def _gaps(items: Items) -> range:
    return range(len(items) + 1)


def _places(items: Items) -> range:
    return range(len(items))


def _each(items: Items, word: str, count: int) -> list[Items]:
    return [tuple(item for item in items for _ in range(count))]


RULES = {
    "copy": Rule(lambda items, word, i: [items]),
    "reverse": Rule(lambda items, word, i: [items[::-1]]),
    "sort": Rule(lambda items, word, i: [tuple(sorted(items))]),
    "shuffle": Rule(lambda items, word, i: shuffles(items)),
    "insert_index": Rule(
        lambda items, word, i: [inserted(items, word, i)], True, _gaps
    ),
    "insert_random": Rule(
        lambda items, word, i: [inserted(items, word, j) for j in _gaps(items)], True
    ),
    "remove_index": Rule(lambda items, word, i: [removed(items, i)], False, _places),
    "remove_random": Rule(
        lambda items, word, i: [removed(items, j) for j in _places(items)]
    ),
    "replace_index": Rule(
        lambda items, word, i: [replaced(items, word, i)], True, _places
    ),
    "replace_random": Rule(
        lambda items, word, i: [replaced(items, word, j) for j in _places(items)], True
    ),
    "repeat_each": Rule(_each, False, lambda items: COUNTS),
    "repeat_list": Rule(
        lambda items, word, n: [items * n], False, lambda items: COUNTS
    ),
}
LISTS = tuple(name for name in RULES if not name.startswith("repeat"))  # the ten rules


def check(rule: str) -> Rule:
    """Return a rule; raise DataError for an unknown name."""
    if rule not in RULES:
        raise DataError(f"{rule!r} is no list rule: use one of {[*RULES]}")
    return RULES[rule]


def draw(
    rule: str,
    rng: random.Random,
    lengths: Sequence[int] = LENGTHS,
    words: Sequence[str] = LETTERS,
) -> Case:
    """Draw a case of a rule, and one of its answers, all equally likely.

    Args:
        rule: of `RULES`.
        rng: draws.
        lengths: of the list, all equally likely; 2 or more to have an order.
        words: different ones, more than the longest list has.

    Raises:
        DataError: an unknown rule, or too few words.
    """
    how, length = check(rule), rng.choice(list(lengths))
    if length < 2 or length >= len(words):
        raise DataError(
            f"a list of {length} of {len(words)} words: use 2 or more, less than words"
        )
    *items, other = rng.sample(list(words), length + 1)
    context, word = tuple(items), other if how.takes_word else ""
    number = -1 if how.numbers is None else rng.choice(list(how.numbers(context)))
    if rule == "shuffle":  # without listing n! - 1 orders
        order = context
        while order == context:
            order = tuple(rng.sample(items, length))
        return Case(rule, context, word, number, order)
    answer = rng.choice(how.answers(context, word, number))
    return Case(rule, context, word, number, answer)


def cases(
    rule: str,
    count: int,
    seed: int,
    lengths: Sequence[int] = LENGTHS,
    words: Sequence[str] = LETTERS,
) -> list[Case]:
    """Draw `count` cases of a rule, which `seed` determines."""
    rng = random.Random(f"{rule} {seed}")
    return [draw(rule, rng, lengths, words) for _ in range(count)]


def answers(case: Case) -> list[Items]:
    """Return all right answers of a case, n! - 1 of a shuffle."""
    return check(case.rule).answers(case.items, case.word, case.number)


def answer_size(rule: str, length: int) -> int:
    """Return the items of a rule's longest answer, for lists of `length`."""
    how, items = check(rule), LETTERS[:length]
    if rule == "shuffle":
        return length
    numbers = [-1] if how.numbers is None else how.numbers(items)
    return max(len(how.answers(items, "", number)[0]) for number in numbers)


def is_right(case: Case, items: Sequence[str]) -> bool:
    """Return whether a list is a right answer of a case."""
    found = tuple(items)
    if case.rule == "shuffle":
        return sorted(found) == sorted(case.items) and found != case.items
    return found in answers(case)


def one_shot(right: Sequence[Items]) -> float:
    """Return the probability of a right answer, drawn token by token at once.

    Each token comes from its exact law given that all right answers, of one length, are
    equally likely: `sum_y prod_i p_i(y_i)`. 1 for a single answer.
    """
    laws = [collections.Counter(place) for place in zip(*right, strict=True)]
    mass = 0.0
    for answer in right:
        shares = [law[item] / len(right) for law, item in zip(laws, answer)]
        mass += math.prod(shares)
    return mass


def total_correlation(right: Sequence[Items]) -> float:
    """Return sum_i H(X_i) - H(X) in nats, for equally likely right answers.

    The least KL divergence that any law with independent tokens has (section 3).
    """
    entropy = 0.0
    for place in zip(*right, strict=True):
        shares = [n / len(right) for n in collections.Counter(place).values()]
        entropy -= sum(p * math.log(p) for p in shares)
    return entropy - math.log(len(right))


def shuffle_accuracy(steps: Sequence[int]) -> float:
    """Return the probability of a shuffle, with so many items drawn in each step.

    Every item comes from the uniform law over the items that are left before its step:

        prod_steps prod_{i < h} (left - i) / left,   less 1/n! of it for the identity

    `[n]` is one shot, (n! - 1) / n^n; `[1] * n` fails at the identity alone.
    """
    left, mass = sum(steps), 1.0
    whole = 1 / math.factorial(left)
    for count in steps:
        for i in range(count):
            mass *= (left - i) / left
        left -= count
    return mass * (1 - whole)


def replace_accuracy(steps: Sequence[int]) -> float:
    """Return the probability that one item alone is replaced, drawn in such steps.

    While the word stands nowhere, each of m places gets it with probability 1/m. `[n]`
    is one shot, (1 - 1/n)^(n - 1); `[1] * n` is 1.
    """
    left, none, mass = sum(steps), 1.0, 0.0  # none: the word stands nowhere so far
    for count in steps:
        miss = 1 - 1 / left
        mass += none * count / left * miss ** (count - 1)
        none *= miss**count
        left -= count
    return mass
