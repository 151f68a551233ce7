"""Needle: a fact at a chosen depth of held-out text, asked for at its end.

    cases(lm, files, ..) -> cases;   score(case, tokens) -> 0.0 to 1.0

The fact is a line of `training.data.planted_facts` ("code" or "prose"): a name and a
value of random words. The question is the line up to its value. Other facts may stand
in the text, which are not asked for.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.benchmarks.long_context import Case, Files, passages, share_right
from models.errors import DataError
from training.data import planted_facts

score = share_right


def cases(
    lm: Any,
    files: Files,
    length: int,
    depths: Sequence[float] = (0.0, 0.25, 0.5, 0.75, 1.0),
    count: int = 16,
    seed: int = 0,
    form: str = "code",
    others: int = 0,
) -> list[Case]:
    """Make `count` cases for each depth.

    Args:
        lm: the model, for its tokenizer.
        files: held-out text, of `long_context.files`.
        length: tokens of a prompt.
        depths: where the fact stands in the text: 0 at its beginning, 1 at its end.
        count: cases of a depth.
        seed: of text and facts.
        form: of `planted_facts.FORMS`.
        others: further facts in the text, at random places.

    Raises:
        DataError: a length without room for the facts, or a depth outside [0, 1].
    """
    if not all(0 <= depth <= 1 for depth in depths):
        raise DataError(f"depths={depths}: use shares from 0 to 1")
    how = planted_facts.facts(lm.tokenizer.inner, form)
    rng = np.random.default_rng([seed, length])
    sample = planted_facts.draw(rng, how, 1)[0]
    room = length - len(sample.head) - (1 + others) * len(sample.line)
    if room < 1:
        raise DataError(
            f"length={length} has no room for {1 + others} facts of "
            f"{len(sample.line)} tokens and the question: use longer prompts"
        )
    made = []
    texts = passages(files, count * len(depths), room, seed)
    for i, text in enumerate(texts):
        depth = depths[i // count]
        asked, *rest = planted_facts.draw(rng, how, 1 + others)
        place = round(depth * room)
        spots = [(place, 0), *((int(x), 1) for x in rng.integers(0, room + 1, others))]
        made.append(_case(text, [asked, *rest], spots, depth))
    return made


def _case(
    text: Sequence[int],
    facts: Sequence[planted_facts.Fact],
    spots: Sequence[tuple[int, int]],
    depth: float,
) -> Case:
    """Put facts at their spots, the first one's value to be asked for."""
    tokens: list[int] = []
    last = start = 0
    for i in sorted(range(len(facts)), key=lambda i: spots[i]):
        tokens += text[last : spots[i][0]]
        last = spots[i][0]
        if i == 0:
            start = len(tokens) + len(facts[0].head)
        tokens += facts[i].line
    tokens += text[last:]
    context, asked = len(tokens), facts[0]
    prompt = (*tokens, *asked.head)
    end = start + len(asked.value)
    return Case(prompt, context, asked.value, depth, start, end)
