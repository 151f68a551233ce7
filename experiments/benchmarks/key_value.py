"""Key-value retrieval: one of many like lines, which all stand together.

    cases(lm, files, ..) -> cases;   recalled(..) -> cases of the recall model
    score(case, tokens) -> 0.0 to 1.0

All lines are facts of `training.data.planted_facts`; the others are distractors of the
same form, and two neighbours' names differ in their first word alone. Held-out text
follows them up to the question. `recalled` are the facts of `models.synthetic.recall`,
which that model answers exactly.
"""

from typing import Any

import numpy as np

from experiments.benchmarks.long_context import Case, Files, passages, share_right
from models.errors import DataError
from models.synthetic import recall
from training.data import planted_facts

score = share_right


def cases(
    lm: Any,
    files: Files,
    length: int,
    pairs: int = 8,
    count: int = 16,
    seed: int = 0,
    form: str = "code",
) -> list[Case]:
    """Make cases; the asked line's place among all goes round.

    Args:
        lm: the model, for its tokenizer.
        files: held-out text, of `long_context.files`.
        length: tokens of a prompt.
        pairs: lines, one of which is asked for.
        count: cases.
        seed: of text and facts.
        form: of `planted_facts.FORMS`.

    Raises:
        DataError: a length without room for the lines, or under one line.
    """
    how = planted_facts.facts(lm.tokenizer.inner, form)
    rng = np.random.default_rng([seed, length, pairs])
    made = []
    sample = planted_facts.draw(rng, how, 1)[0]
    room = length - len(sample.head) - pairs * len(sample.line)
    if pairs < 1 or room < 1:
        raise DataError(
            f"length={length} has no room for {pairs} facts of {len(sample.line)} "
            "tokens and the question: use longer prompts or fewer pairs"
        )
    for i, text in enumerate(passages(files, count, room, seed)):
        facts = planted_facts.draw(rng, how, pairs, alike=True)
        which = i * pairs // count % pairs
        lines = [token for fact in facts for token in fact.line]
        prompt = (*lines, *text, *facts[which].head)
        start = which * len(sample.line) + len(sample.head)
        value = facts[which].value
        depth = start / len(prompt)
        context = len(lines) + len(text)
        made.append(Case(prompt, context, value, depth, start, start + len(value)))
    return made


def recalled(
    length: int, facts: int = 32, count: int = 16, seed: int = 0
) -> list[Case]:
    """Make cases of the recall model; the asked fact's place among all goes round."""
    made = []
    for i in range(count):
        drawn = recall.case(
            length, facts, seed=seed * count + i, asked=i * facts // count % facts
        )
        start, end = drawn.needed[0], drawn.needed[-1] + 1
        place = (start / length, start, end)
        made.append(Case(drawn.prompt, drawn.context, drawn.expected, *place))
    return made
