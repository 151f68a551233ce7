"""Record how much of a draft `tiny` accepts at every place of a text.

python -m tests.decoding.block_width.record_acceptance

Texts are those of the quickstart's tasks, continued by plain decoding at T = 0.8. From
every place of a text each method decodes one round at its paper's width; noise belongs
to the place, so that a round there is the same whatever was accepted before it.
Writes recorded.json: method/task/prompt -> [tokens drafted, tokens accepted] by place.
"""

import json
import pathlib

import numpy as np

import decoding
import models
from decoding import base
from experiments.prompts import builtin_tasks

FILE = pathlib.Path(__file__).with_name("recorded.json")
TASKS, PROMPTS, PROMPT, NEW, ROWS = ("code", "copy", "text"), 2, 192, 320, 40
SETTINGS = {"temperature": 0.8, "width": "paper"}


def main() -> None:
    lm, draft = models.load("tiny"), {"draft": models.load("tiny-draft")}
    methods = {"model_chain": draft, "prompt_lookup": {}, "copyspec": {}}
    found = {}
    for task, prompts in builtin_tasks.build(lm, TASKS, PROMPTS, PROMPT).items():
        for i, prompt in enumerate(prompts):
            plain = decoding.generate(lm, [prompt], "plain", NEW, **SETTINGS)
            text = list(prompt) + plain.tokens[0]
            places = range(len(prompt), len(text) - 1)
            for method, drafts in methods.items():
                found[f"{method}/{task}/{i}"] = [
                    pair
                    for j in range(0, len(places), ROWS)
                    for pair in _round(lm, method, drafts, text, places[j : j + ROWS])
                ]
    FILE.write_text(json.dumps(found, separators=(",", ":")) + "\n")


def _round(lm, method, drafts, text, places) -> list[list[int]]:
    """Decode one round from each of the `places`; a full batch has one program."""
    outcomes = []

    def once(step, state):
        state, outcome = step(state)
        outcomes.append(outcome)
        return state

    rows = [*places, *[places[-1]] * (ROWS - len(places))]
    prompts = [text[:place] for place in rows]
    fields = {"drafts": drafts, "seed": [0] * ROWS, "loop": once, **SETTINGS}
    decoding.generate(lm, prompts, method, 32, **fields)
    drafted = (np.asarray(outcomes[0].tree.kind) == base.CANDIDATE).sum(1) - 1
    accepted = np.asarray(outcomes[0].verdict.count)
    return np.stack([drafted, accepted], 1)[: len(places)].tolist()


if __name__ == "__main__":
    main()
