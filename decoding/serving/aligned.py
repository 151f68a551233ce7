"""Draw text after text under a constraint, each closer to the model's conditional law.

The loop of ASAp (`constraints/asap`): decode some texts, measure p and Z along them in
one pass of the target, renew the bounds, go on.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from decoding import api, compose
from decoding.automata import compiled
from decoding.automata.mass_trie import MassTrie
from decoding.catalogue import PerPrompt, Spec
from decoding.hypotheses.procedure import OF_TEXTS, collected
from decoding.method import Method
from decoding.serving import constraining, path_masses, requests
from decoding.serving.output import Output
from models.errors import PromptError

ASAP = "constraints/asap"


def sample(
    lm: Any,
    prompts: Sequence[Any],
    constraint: Any,
    samples: int = 200,
    batch: int = 1,
    memory: MassTrie | None = None,
    transforms: Sequence[Spec] = (),
    temperature: float = 1.0,
    max_new_tokens: int = 128,
    seed: int = 0,
    finish: bool = False,
    **fields: Any,
) -> Output:
    """Draw `samples` texts of every prompt, in the order in which they were drawn.

    The first `batch` texts of a prompt are those of masked decoding. Nothing is claimed
    of the law of the first 50: see `constraints/asap`.

    Args:
        lm: the model, or its name.
        prompts: P of them, as `generate` takes them.
        constraint: a grammar as `generate` takes it, a list of one a prompt, or a
            `Spec` of constraints/ for all prompts.
        samples: texts of a prompt.
        batch: texts of a prompt between two renewals of the bounds.
        memory: `out.memory` of an earlier call with the same prompts, constraint,
            transforms and temperature, whose texts count; it is not changed. None:
            there is none.
        transforms: specs that act before the constraint and shape p: truncations too.
        temperature: of p, above 0.
        max_new_tokens: of a text; one that the limit cuts counts as one that may end.
        seed: of the first text; others have seeds made from it.
        finish: whether every text ends within `max_new_tokens`.
        **fields: further arguments of `generate`, such as `method` and `drafts`.

    Returns:
        Lists of `samples` texts a prompt. `scores` are log c of the empty text after
        each text, a bound on the log-probability of the constraint; `memory` is the
        trie, `stats` are of the last call.

    Raises:
        PromptError: a number of samples, or a temperature, that is too small.
    """
    if min(samples, batch) < 1 or temperature <= 0:
        raise PromptError(
            f"samples={samples}, batch={batch}, temperature={temperature}: use at "
            "least one text and a temperature above 0"
        )
    lm = requests.named(lm) if type(lm) is str else lm
    encoded = requests.encode(lm, prompts)
    grammars = None
    if type(constraint) is not Spec:
        read = constraining.read(lm, constraint, len(encoded), "device", finish)
        grammars = None if read is None else tuple(one.grammar for one in read)
    masks = [constraint] * len(encoded)
    if grammars is not None:
        masks = _masks(grammars, max_new_tokens if finish else 0)
    trie = MassTrie() if memory is None else memory.copy()
    rows, heats = encoded * batch, [temperature] * len(encoded) * batch
    method = Method(transforms=(*transforms, _parts(masks, batch, None)))
    law = compose.compose(method, lm, heats)
    parts: list[Output] = []
    scores: list[list[float]] = [[] for _ in encoded]
    asked = {"temperature": temperature, "max_new_tokens": max_new_tokens, **fields}
    for call in range(-(-samples // batch)):
        asked["transforms"] = (*transforms, _parts(masks, batch, trie))
        out = api.generate(lm, rows, seed=_seed(seed, call), **asked)
        figures = path_masses.measured(lm, law, rows, out.tokens)
        for i, (text, numbers) in enumerate(zip(out.tokens, figures)):
            prompt = i % len(encoded)
            trie.add(prompt, text, numbers.logprobs, numbers.masses)
            scores[prompt].append(trie.log_bound(prompt))
        parts += [_block(out, turn, len(encoded)) for turn in range(batch)]
    orders = [[*enumerate(row[:samples])] for row in scores]
    found = collected(parts, orders)
    verdicts = None
    if grammars is not None:
        held = tuple(constraining.Constraint(grammar) for grammar in grammars)
        verdicts = constraining.accepted(lm, held, encoded, found.tokens)
    return replace(found, memory=trie, accepted=verdicts)


def _masks(grammars: Sequence[compiled.Grammar | None], finish: int) -> list[Spec]:
    """Return the constraint of each prompt; they differ in numbers alone."""
    distinct = tuple(dict.fromkeys(grammars))
    return [
        Spec(
            constraining.GRAMMAR,
            grammars=distinct,
            index=distinct.index(grammar),
            finish=finish,
        )
        for grammar in grammars
    ]


def _parts(masks: Sequence[Spec], batch: int, trie: MassTrie | None) -> PerPrompt:
    """Return ASAp for `batch` rows a prompt; prompts have a root each."""
    specs = [
        Spec(ASAP, constraint=mask, memory=trie, index=i)
        for i, mask in enumerate(masks)
    ]
    return PerPrompt(tuple(specs) * batch)


def _block(out: Output, turn: int, count: int) -> Output:
    """Cut out the texts of a turn, one a prompt."""
    rows = slice(turn * count, (turn + 1) * count)
    cut = lambda values: None if values is None else values[rows]
    values: dict[str, Any] = {name: cut(getattr(out, name)) for name in OF_TEXTS}
    return replace(out, **values)


def _seed(seed: int, call: int) -> int:
    """Return the seed of a call; the first has the caller's."""
    if not call:
        return seed
    words = np.random.SeedSequence([seed % 2**64, call]).generate_state(1)
    return int(words[0] >> 1)
