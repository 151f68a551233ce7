"""Self-consistency: the answer that most of N samples give.

Wang, Wei, Schuurmans, Le, Chi, Narang, Chowdhery, Zhou, *Self-Consistency Improves
Chain of Thought Reasoning in Language Models*, 2023, arXiv 2203.11171, section 2. The
answer of a text is the last match of `pattern` (its first group, if it has one).

    answer = argmax_a sum_i [a_i = a]        N -> samples

Ties go to the answer that was given first. The text returned is the first that gives
the answer; then come the texts of the next answers. Texts without an answer come last.

Deviations: none; the paper samples 40 texts at T = 0.5 to 0.7.
Cost: N rows.
"""

import re
from collections.abc import Callable, Sequence

from decoding import base
from decoding.catalogue import Card
from decoding.hypotheses.rank import Rank, Sample
from models.errors import MethodError

CARD = Card(
    paper="Self-consistency, arXiv 2203.11171",
    guarantee=base.LOSSY,
    family="samples",
    kind="rank",
    examples={"samples": 4, "pattern": "[a-c]"},
    sources=("wang2023self",),
)

NUMBER = r"-?\d[\d,]*(?:\.\d+)?"


def rank(
    samples: int = 40,
    pattern: str = NUMBER,
    extract: Callable[[str], str | None] | None = None,
) -> Rank:
    """Return the texts in the order of their answers' votes.

    Args:
        samples: texts a prompt.
        pattern: a regex of Python's `re`; by default a text's last number.
        extract: text -> answer or None, in place of the pattern.
    """
    if samples < 1:
        raise MethodError(f"samples={samples}: use at least 1")
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise MethodError(f"pattern={pattern!r} is no regex: {error}") from error

    def last_match(text: str) -> str | None:
        matches = list(compiled.finditer(text))
        if not matches:
            return None
        return matches[-1][1 if compiled.groups else 0]

    find = extract or last_match

    def order(found: Sequence[Sample]) -> list[tuple[int, float]]:
        if any(s.text is None for s in found):
            raise MethodError("votes need texts, and the model has no tokenizer")
        answers = [find(s.text or "") for s in found]
        given = [a for a in answers if a is not None]
        # Stable: of equal counts the answer that was given first.
        ranked = sorted(dict.fromkeys(given), key=lambda a: -given.count(a))
        place = {answer: i for i, answer in enumerate(ranked)}
        places = [len(ranked) if a is None else place[a] for a in answers]
        votes = [0 if a is None else given.count(a) for a in answers]
        return [
            (i, float(votes[i])) for _, i in sorted(zip(places, range(len(places))))
        ]

    return Rank(samples, order)
