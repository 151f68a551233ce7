"""Self-consistency: the answer that most of N samples give.

Wang, Wei, Schuurmans, Le, Chi, Narang, Chowdhery, Zhou, *Self-Consistency Improves
Chain of Thought Reasoning in Language Models*, 2023, arXiv 2203.11171, section 2. The
answer of a text is the last match of `pattern` (its first group, if it has one).

    answer = argmax_a sum_i w_i [a_i = a]        N -> samples

with w_i = 1, or the texts' rewards where there is a reward. Ties go to the answer that
was given first. The text returned is the first that gives the answer; then come the
texts of the next answers. Texts without an answer come last.

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
        votes: dict[str, float] = {}
        for answer, sample in zip(answers, found):
            if answer is not None:
                weight = 1.0 if sample.value is None else sample.value
                votes[answer] = votes.get(answer, 0.0) + weight
        # Stable: of equal votes the answer that was given first.
        place = {a: i for i, a in enumerate(sorted(votes, key=lambda a: -votes[a]))}
        places = [len(place) if a is None else place[a] for a in answers]
        order = sorted(range(len(found)), key=lambda i: (places[i], i))
        least = min([0.0, *votes.values()])
        return [(i, votes.get(answers[i] or "", least)) for i in order]

    return Rank(samples, order)
