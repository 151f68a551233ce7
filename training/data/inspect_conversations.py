"""What is wrong with a file of conversations, before a head is trained on it.

python -m training.data.inspect_conversations --model=tiny --data=sharegpt.jsonl
[--sample=64]

Prints how many lines can be used and why others cannot, how much of the text is
learned from (mask coverage), whether the chat template keeps what was said, and on how
many of the learned places the target's likeliest token is the label. Text that the
target wrote itself has a high share there; text of others teaches a draft what its
target does not say (write it anew with training.distill). Ends with status 1 where
something is wrong.
"""

import argparse
import json
import pathlib
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

import models
from models import transformer
from models.errors import DataError, DecodaxError, PromptError
from training.data import conversations

LEAST_COVERAGE, LEAST_AGREEMENT = 0.05, 0.3


@dataclass
class Findings:
    """What the doctor saw; shares are of tokens unless they say otherwise."""

    lines: int = 0
    usable: int = 0
    refused: dict[str, int] = field(default_factory=dict)  # reason -> lines
    first_refused: str = ""
    tokens: int = 0
    learned: int = 0
    coverage: float = 0.0  # learned / tokens
    unlearned_lines: int = 0  # usable, with a mask of zeros
    turns_by_role: dict[str, int] = field(default_factory=dict)
    longest: int = 0
    too_long: int = 0  # lines past the model's positions
    lost_answers: int = 0  # answers whose text the masked tokens do not give back
    ended_answers: float = 0.0  # share of answers whose mask ends with an EOS
    agreement: float | None = None  # target's arg-max is the label, on learned places
    agreement_places: int = 0
    troubles: list[str] = field(default_factory=list)


def examine(
    lm: Any, path: str | pathlib.Path, sample: int = 64, longest: int = 2048
) -> Findings:
    """Read a file; the target is asked about `sample` usable lines (0: none).

    Lines are cut to `longest` tokens for that.
    """
    found = Findings()
    roles: Counter = Counter()
    reasons: Counter = Counter()
    asked: list[conversations.Conversation] = []
    answers = ended = 0
    text = pathlib.Path(path).read_text(encoding="utf-8")
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        found.lines += 1
        try:
            said = conversations.messages(json.loads(line))
            one = conversations.render(lm, said)
        except (json.JSONDecodeError, DataError, PromptError) as error:
            reasons[_reason(error)] += 1
            found.first_refused = found.first_refused or f"line {number}: {error}"
            continue
        found.usable += 1
        roles.update(message["role"] for message in said)
        found.tokens += len(one.tokens)
        found.learned += int(one.mask.sum())
        found.unlearned_lines += not one.mask.any()
        found.longest = max(found.longest, len(one.tokens))
        found.too_long += len(one.tokens) > lm.config.max_positions
        wanted = [m["content"] for m in said if m["role"] == "assistant"]
        runs = masked_runs(one)
        answers += len(runs)
        ended += sum(int(run[-1]) in lm.config.eos for run in runs)
        found.lost_answers += lost(lm, runs, wanted)
        if len(asked) < sample and one.mask[:longest].any():
            asked.append(
                conversations.Conversation(one.tokens[:longest], one.mask[:longest])
            )
    found.refused, found.turns_by_role = dict(reasons), dict(roles)
    found.coverage = found.learned / max(found.tokens, 1)
    found.ended_answers = ended / max(answers, 1)
    if asked:
        found.agreement, found.agreement_places = agreement(lm, asked)
    found.troubles = troubles(found)
    return found


def _reason(error: Exception) -> str:
    kinds: dict[type, str] = {
        json.JSONDecodeError: "no JSON",
        PromptError: "the chat template refuses it, or there is none",
    }
    return kinds.get(type(error), "no conversation that this template can mask")


def masked_runs(one: conversations.Conversation) -> list[np.ndarray]:
    """The learned tokens, one array for each run of them."""
    edges = np.flatnonzero(np.diff(np.pad(one.mask.astype(int), 1)))
    return [one.tokens[a:b] for a, b in zip(edges[::2], edges[1::2])]


def lost(lm: Any, runs: Sequence[np.ndarray], wanted: Sequence[str]) -> int:
    """How many answers are not in the text of their learned tokens.

    Templates may trim spaces, which is no loss.
    """
    texts = [lm.tokenizer.decode(run.tolist()) for run in runs]
    if len(texts) != len(wanted):
        return len(wanted)
    return sum(w.strip() not in t for t, w in zip(texts, wanted))


def agreement(
    lm: Any, texts: Sequence[conversations.Conversation]
) -> tuple[float, int]:
    """On which share of the learned places the target's likeliest token is the label.

    The place of a token is that before it: token 0 has none.
    """

    @jax.jit
    def right(params: Any, tokens: Any, mask: Any) -> Any:
        logits: Any = transformer.forward(lm.config, params, tokens).logits
        best = logits.argmax(-1)
        hit = best[:, :-1] == tokens[:, 1:]
        return (hit & mask[:, 1:]).sum(), mask[:, 1:].sum()

    hits = places = 0
    for one in texts:
        size = 64
        while size < len(one.tokens):
            size *= 2
        short = size - len(one.tokens)
        tokens, mask = (np.pad(x, (0, short))[None] for x in one)
        a, b = right(lm.params, tokens, mask)
        hits, places = hits + int(a), places + int(b)
    return hits / max(places, 1), places


def troubles(found: Findings) -> list[str]:
    """What should be seen to before training, most serious first."""
    said = []
    if not found.usable:
        said.append("no line can be used")
    elif not found.learned:
        said.append("the loss mask is zero everywhere: no assistant's turn was found")
    if found.refused:
        count = sum(found.refused.values())
        said.append(
            f"{count} of {found.lines} lines are refused; {found.first_refused}"
        )
    if found.lost_answers:
        said.append(
            f"{found.lost_answers} answers are not in what is learned: the template "
            "alters or drops them"
        )
    if found.learned and found.coverage < LEAST_COVERAGE:
        said.append(
            f"only {100 * found.coverage:.1f} % of the tokens are learned from: look "
            "at the roles"
        )
    if found.learned and not found.ended_answers:
        said.append("no answer's mask holds an EOS: a draft would not learn to end")
    if found.too_long:
        said.append(f"{found.too_long} lines are longer than the model's positions")
    if found.agreement is not None and found.agreement < LEAST_AGREEMENT:
        said.append(
            f"the target would say {100 * found.agreement:.0f} % of the labels: "
            "another template, another model's text, or a shift; write it anew with "
            "training.distill"
        )
    return said


def report(found: Findings) -> str:
    """The findings for people."""
    lines = [
        f"lines         {found.lines}, usable {found.usable}",
        f"tokens        {found.tokens}, longest line {found.longest}",
        f"learned       {found.learned} ({100 * found.coverage:.1f} %), "
        f"{found.unlearned_lines} lines without any",
        f"turns         {found.turns_by_role}",
        f"answers       {100 * found.ended_answers:.1f} % end with an EOS, "
        f"{found.lost_answers} lost",
    ]
    if found.agreement is not None:
        lines.append(
            f"agreement     the target's likeliest token is the label on "
            f"{100 * found.agreement:.1f} % of {found.agreement_places} places"
        )
    lines += [f"refused       {n}: {why}" for why, n in found.refused.items()]
    lines += [f"TROUBLE       {trouble}" for trouble in found.troubles]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line: 0 for a healthy file, 1 with troubles, 2 for a wrong call."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="the target")
    parser.add_argument("--data", required=True, help="a JSONL file")
    parser.add_argument("--sample", type=int, default=64, help="lines asked about")
    given = parser.parse_args(arguments)
    try:
        found = examine(models.load(given.model), given.data, given.sample)
    except (DecodaxError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    sys.stdout.write(report(found))
    return 1 if found.troubles else 0


if __name__ == "__main__":
    sys.exit(main())
