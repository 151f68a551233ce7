"""Check a file of conversations before a head is trained on it.

python -m training.data.inspect_conversations --model=tiny --data=sharegpt.jsonl
[--sample=64]

Prints how many lines can be used, why others cannot, and whether the chat template
keeps the answers. Coverage is the share of tokens in the loss. Agreement is how often
the target's likeliest token is the label, high for text that the target generated.
Other text trains a draft on tokens that its target would not generate (rewrite it with
training.distill). Ends with status 1 where something is wrong.
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
from models.text import row_files
from training.data import conversations

LEAST_COVERAGE, LEAST_AGREEMENT = 0.05, 0.3


@dataclass
class Findings:
    """The findings on a file; shares are of tokens where nothing else is noted."""

    lines: int = 0
    usable: int = 0
    refused: dict[str, int] = field(default_factory=dict)  # reason -> lines
    first_refused: str = ""
    tokens: int = 0
    learned: int = 0  # tokens in the loss
    coverage: float = 0.0  # learned / tokens
    unlearned_lines: int = 0  # usable, with a mask of zeros
    turns_by_role: dict[str, int] = field(default_factory=dict)
    longest: int = 0
    too_long: int = 0  # lines past the model's positions
    lost_answers: int = 0  # answers that the decoded masked tokens do not contain
    ended_answers: float = 0.0  # share of answers whose mask ends with an EOS
    agreement: float | None = None  # target's arg-max is the label, on learned places
    agreement_places: int = 0
    troubles: list[str] = field(default_factory=list)


def examine(
    lm: Any, path: str | pathlib.Path, sample: int = 64, longest: int = 2048
) -> Findings:
    """Read a file, and measure the target's agreement on `sample` usable lines.

    Lines are cut to `longest` tokens for the agreement; `sample` 0 skips it.
    """
    findings = Findings()
    roles: Counter = Counter()
    reasons: Counter = Counter()
    sampled: list[conversations.Conversation] = []
    answers = ended = 0
    for where, line in row_files.lines(path):
        findings.lines += 1
        try:
            messages = conversations.messages(json.loads(line))
            one = conversations.render(lm, messages)
        except (json.JSONDecodeError, DataError, PromptError) as error:
            reasons[_reason(error)] += 1
            findings.first_refused = findings.first_refused or f"{where}: {error}"
            continue
        findings.usable += 1
        roles.update(message["role"] for message in messages)
        findings.tokens += len(one.tokens)
        findings.learned += int(one.mask.sum())
        findings.unlearned_lines += not one.mask.any()
        findings.longest = max(findings.longest, len(one.tokens))
        findings.too_long += len(one.tokens) > lm.config.max_positions
        texts = [m["content"] for m in messages if m["role"] == "assistant"]
        runs = masked_runs(one)
        answers += len(runs)
        ended += sum(int(run[-1]) in lm.config.eos for run in runs)
        findings.lost_answers += lost(lm, runs, texts)
        if len(sampled) < sample and one.mask[:longest].any():
            sampled.append(
                conversations.Conversation(one.tokens[:longest], one.mask[:longest])
            )
    findings.refused, findings.turns_by_role = dict(reasons), dict(roles)
    findings.coverage = findings.learned / max(findings.tokens, 1)
    findings.ended_answers = ended / max(answers, 1)
    if sampled:
        findings.agreement, findings.agreement_places = agreement(lm, sampled)
    findings.troubles = troubles(findings)
    return findings


def _reason(error: Exception) -> str:
    kinds: dict[type, str] = {
        json.JSONDecodeError: "no JSON",
        PromptError: "the chat template refuses it, or there is none",
    }
    return kinds.get(type(error), "no conversation that this template can mask")


def masked_runs(one: conversations.Conversation) -> list[np.ndarray]:
    """Return the tokens in the loss, one array for each run of them."""
    edges = np.flatnonzero(np.diff(np.pad(one.mask.astype(int), 1)))
    return [one.tokens[a:b] for a, b in zip(edges[::2], edges[1::2])]


def lost(lm: Any, runs: Sequence[np.ndarray], wanted: Sequence[str]) -> int:
    """Count the answers that are not in the text of their tokens in the loss.

    Templates may trim spaces, which is no loss.
    """
    texts = [lm.tokenizer.decode(run.tolist()) for run in runs]
    if len(texts) != len(wanted):
        return len(wanted)
    return sum(w.strip() not in t for t, w in zip(texts, wanted))


def agreement(
    lm: Any, texts: Sequence[conversations.Conversation]
) -> tuple[float, int]:
    """Return the share of labels that are the target's likeliest token, and the count.

    A label is the token after a place: token 0 is none.
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
    """List the troubles to mend before training, most serious first."""
    messages = []
    if not found.usable:
        messages.append("no line can be used")
    elif not found.learned:
        messages.append(
            "the loss mask is zero everywhere: no assistant's turn was found"
        )
    if found.refused:
        count = sum(found.refused.values())
        messages.append(
            f"{count} of {found.lines} lines are refused; {found.first_refused}"
        )
    if found.lost_answers:
        messages.append(
            f"{found.lost_answers} answers are not in the tokens of the loss: the "
            "template alters or drops them"
        )
    if found.learned and found.coverage < LEAST_COVERAGE:
        messages.append(
            f"only {100 * found.coverage:.1f} % of the tokens are in the loss: check "
            "the roles"
        )
    if found.learned and not found.ended_answers:
        messages.append("no answer's mask holds an EOS: a draft would not learn to end")
    if found.too_long:
        messages.append(f"{found.too_long} lines are longer than the model's positions")
    if found.agreement is not None and found.agreement < LEAST_AGREEMENT:
        messages.append(
            f"the target's likeliest token is the label at only "
            f"{100 * found.agreement:.0f} %: another template, another model's text, "
            "or a shift; rewrite it with training.distill"
        )
    return messages


def report(found: Findings) -> str:
    """Format the findings as lines of text."""
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
    """Run the command line: 0 for a healthy file, 1 with troubles, 2 for bad calls."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="the target")
    parser.add_argument(
        "--data", required=True, help="a JSONL or parquet file, or hf://..."
    )
    parser.add_argument(
        "--sample", type=int, default=64, help="lines for the agreement"
    )
    options = parser.parse_args(arguments)
    try:
        findings = examine(models.load(options.model), options.data, options.sample)
    except (DecodaxError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    sys.stdout.write(report(findings))
    return 1 if findings.troubles else 0


if __name__ == "__main__":
    sys.exit(main())
