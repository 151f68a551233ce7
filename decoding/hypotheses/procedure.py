"""Searches that call `generate` again and again: their hypotheses are whole texts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from decoding import base
from decoding.serving.output import Output

Generate = Callable[[Sequence[Any]], Output]
OF_TEXTS = (
    *("tokens", "texts", "logprobs", "origin", "finish_reason", "top_logprobs"),
    "order",
)


class Procedure(NamedTuple):
    """A loop over `generate`, under any drafter.

    - `texts`: texts that it returns for every prompt.
    - `run(generate, prompts) -> Output` runs on the host. `generate(prompts)` is
      `decoding.generate` with all other arguments of the call, one text a prompt. It
      takes as many prompts as the call has, because settings may differ by prompt.
      Every call draws other noise; the first draws that of `decoding.generate`.

    The output has `texts` texts a prompt, the best first, and their scores; `collected`
    makes it. Statistics and guarantee are filled in.
    """

    texts: int
    run: Callable[[Generate, Sequence[Any]], Output]
    guarantee: str = base.LOSSY


def collected(
    outputs: Sequence[Output], orders: Sequence[Sequence[tuple[int, float]]]
) -> Output:
    """Collect texts of several calls.

    Args:
        outputs: of calls of one text a prompt.
        orders: a list of pairs (call, score) of every prompt, the best first.

    Returns:
        The last output with these texts and scores, a list of them a prompt.
    """

    def of(name: str) -> list | None:
        if getattr(outputs[0], name) is None:
            return None
        every = [getattr(output, name) for output in outputs]
        return [[every[call][i] for call, _ in row] for i, row in enumerate(orders)]

    scores = [[score for _, score in row] for row in orders]
    texts: dict[str, Any] = {name: of(name) for name in OF_TEXTS}
    return replace(outputs[-1], **texts, scores=scores)


def extended(tokenizer: Any, prompt: Any, words: str) -> Any:
    """Write `words` behind a prompt: a text, tokens, or messages (the last of them)."""
    if type(prompt) is str:
        return prompt + words
    if len(prompt) and isinstance(prompt[0], Mapping):
        last = {**prompt[-1], "content": prompt[-1]["content"] + words}
        return [*prompt[:-1], last]
    special = len(tokenizer.encode(""))  # such as BOS, which begins every text
    return [*prompt, *tokenizer.encode(words)[special:]]
