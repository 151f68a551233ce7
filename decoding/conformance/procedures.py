"""The contract of searches that are loops over `generate`."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from decoding.catalogue import Spec
from decoding.conformance import kit
from decoding.conformance.require import require
from decoding.hypotheses.procedure import Procedure
from decoding.method import Method
from models.errors import PromptError

NEW, ENDING = 12, 0.0  # tokens of a text; texts of the toy end after some of them


def of(spec: Spec) -> Method:
    """Make the method of a search, with its card's examples."""
    return Method(search=kit.spec(spec.name, **spec.arguments))


def built(spec: Spec) -> Procedure:
    """Build a search for the toy model."""
    return kit.spec(spec.name, **spec.arguments).build(
        {**kit.PARTS, "model": kit.TARGET.model}
    )


def found(method: Method, n: int, heat: float = 0.0, prompts=kit.PROMPTS):
    """Search with the toy model."""
    fields = {"lm": kit.model(0, ENDING), "n": n, "prompts": prompts}
    return kit.generate(method, heat, max_new_tokens=NEW, **fields)


def rows(values: list, n: int) -> list[list]:
    """Return the lists of `n` values of every prompt."""
    return [[value] for value in values] if n == 1 else values


def texts_end_once_and_come_best_first(spec: Spec) -> None:
    """Require whole texts: an end is their last token, or the limit is reached.

    Scores do not rise, and n = 1 is the first of all texts. More texts are refused.
    """
    n = built(spec).texts
    out = found(of(spec), n)
    for texts, scores in zip(rows(out.tokens, n), rows(out.scores, n)):
        require(len(texts) == len(scores) == n, spec, f"{len(texts)} texts of {n}")
        for text in texts:
            require(0 < len(text) <= NEW, spec, f"a text has {len(text)} tokens")
            require(kit.EOS not in text[:-1], spec, "a text goes on after its end")
            whole = text[-1] == kit.EOS or len(text) == NEW
            require(whole, spec, "a text stops before its end")
        order = list(scores) == sorted(scores, reverse=True)
        require(order, spec, f"texts are not best first: their scores are {scores}")
    first = [row[0] for row in rows(out.tokens, n)]
    require(found(of(spec), 1).tokens == first, spec, "n = 1 is another text")
    require(out.guarantee == spec.card.guarantee, spec, "another guarantee")
    try:
        found(of(spec), n + 1)
    except PromptError:
        return
    require(False, spec, f"it has {n} texts and returns more")


def a_prompt_is_as_alone(spec: Spec) -> None:
    """Require of the first prompts the texts and scores of calls of one prompt each."""
    n = built(spec).texts
    for heat, prompts in ((0.0, (0, 1)), (0.8, (0,))):  # other prompts: other noise
        together = found(of(spec), n, heat)
        for i in prompts:
            alone = found(of(spec), n, heat, kit.PROMPTS[i : i + 1])
            same = (alone.tokens, alone.scores) == (
                together.tokens[i : i + 1],
                together.scores[i : i + 1],
            )
            require(same, spec, f"prompt {i} alone has other texts or scores")


def drafts_keep_the_texts(spec: Spec) -> None:
    """Require the same texts and scores under a drafter, greedy and sampled."""
    n = built(spec).texts
    tree = kit.spec("drafters/token_recycling", choices=kit.SMALL_TREE)
    for heat in (0.0, 0.8):
        plain = found(of(spec), n, heat)
        drafted = found(replace(of(spec), drafter=tree), n, heat)
        same = (plain.tokens, plain.scores) == (drafted.tokens, drafted.scores)
        require(same, spec, f"drafts change the texts at T = {heat}")


def every_call_is_counted(spec: Spec) -> None:
    """Require that the statistics hold the tokens and calls of all texts."""
    n = built(spec).texts
    out = found(of(spec), n)
    tokens = [sum(len(text) for text in row) for row in rows(out.tokens, n)]
    counted = np.asarray(tokens) <= out.stats.new_tokens
    require(counted.all(), spec, f"{tokens} tokens, {out.stats.new_tokens} counted")
    require(out.stats.host_syncs >= (n > 1), spec, "no call after the first is counted")


CONTRACT: tuple[Callable[[Spec], None], ...] = (
    texts_end_once_and_come_best_first,
    a_prompt_is_as_alone,
    drafts_keep_the_texts,
    every_call_is_counted,
)


def check(spec: Spec) -> None:
    """Check a search against every contract of this file.

    Raises:
        AssertionError: it breaks a property; the message names it.
    """
    for contract in CONTRACT:
        contract(spec)
