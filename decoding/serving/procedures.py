"""A search that is a loop over `generate`: its calls, and their texts as one output."""

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from decoding import base
from decoding.hypotheses.procedure import OF_TEXTS, Procedure
from decoding.loops import stats
from decoding.method import Method
from decoding.serving import requests
from decoding.serving.output import Output
from models.errors import MethodError, PromptError


def of(lm: Any, settings: requests.Settings) -> Method | None:
    """Return the method of a call if its search is a loop over `generate`."""
    method = requests.chosen(lm, settings.method)
    search = method.search
    return method if search is not None and search.card.kind == "procedure" else None


def run(
    generate: Callable[..., Output],
    lm: Any,
    settings: requests.Settings,
    method: Method,
    loop: Any = None,
) -> Output:
    """Run a procedure.

    Args:
        generate: `decoding.generate`.
        lm: the model, or its name.
        settings: of the call.
        method: its search is the procedure; every call decodes with the other parts.
        loop: the call's, which must be None.

    Returns:
        The `n` best texts of every prompt. Its statistics are sums over all calls, a
        row a prompt.

    Raises:
        PromptError: `n` is more than the procedure's texts.
        MethodError: settings of a single call of the model.
    """
    lm = requests.named(lm) if type(lm) is str else lm
    assert method.search is not None
    name, inner = method.search.name, replace(method, search=None)
    _check(name, method, settings, loop)
    available = {"model": lm.model, "vocab_size": lm.model.config.vocab_size}
    available |= {} if lm.tokenizer is None else {"tokenizer": lm.tokenizer}
    procedure: Procedure = method.search.build(available)
    if not 1 <= settings.n <= procedure.texts:
        raise PromptError(
            f"n={settings.n}: this search has {procedure.texts} texts; ask for 1 to as "
            "many, or let it write more"
        )
    given = {f.name: getattr(settings, f.name) for f in fields(settings)}
    count = len(requests.encode(lm, settings.prompts))
    outputs: list[Output] = []

    def again(prompts: Sequence[Any]) -> Output:
        if len(prompts) != count:
            raise MethodError(
                f"{name} decodes {len(prompts)} prompts of a call of {count}: give "
                "generate one for each, because settings may differ by prompt"
            )
        changed = {"prompts": prompts, "method": inner, "n": 1}
        changed["seed"] = _seed(settings.seed, len(outputs))
        changed["memory"] = outputs[-1].memory if outputs else settings.memory
        outputs.append(generate(lm, **{**given, **changed}))
        return outputs[-1]

    found = procedure.run(again, settings.prompts)
    values: dict[str, Any] = {
        name: _best(getattr(found, name), settings.n) for name in OF_TEXTS
    }
    return replace(
        found,
        **values,
        scores=_best(found.scores, settings.n),
        stats=stats.merged([output.stats for output in outputs]),
        guarantee=base.weakest(procedure.guarantee, *(o.guarantee for o in outputs)),
    )


def _check(name: str, method: Method, settings: requests.Settings, loop: Any) -> None:
    """Refuse what makes sense in a single call alone."""
    if loop is not None:
        raise MethodError("loop= runs rounds on the host, a search has none: leave it")
    if method.rewards or settings.reward != ():
        raise MethodError(f"{name} reads no reward: leave it out")
    for argument in ("echo", "prompt_logprobs"):
        if getattr(settings, argument):
            raise MethodError(
                f"{argument}=True with {name}, which writes prompts of its own: leave "
                "it out"
            )


def _seed(seed: Any, call: int) -> Any:
    """Return the seed, or seeds, of a later call."""
    if not call:
        return seed
    if np.ndim(seed):
        return [_seed(one, call) for one in seed]
    words = np.random.SeedSequence([int(seed) % 2**64, call]).generate_state(1)
    return int(words[0] >> 1)


def _best(rows: list | None, n: int) -> list | None:
    """Take the first `n` entries of every prompt; bare ones for `n` = 1."""
    if rows is None:
        return None
    return [row[0] if n == 1 else row[:n] for row in rows]
