"""What the long-context benchmarks share: cases, sources of text, scores.

`needle`, `key_value`, `long_nats` and `far_definition` each make cases by a pure
function. A case's `context` says where its question begins, so that a cache policy may
compress the context before it sees the question, or the whole prompt.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

import decoding
from configs.language_models import tiny_text
from experiments.prompts import builtin_tasks
from models import transformer
from models.errors import DataError
from training.data import file_groups
from training.objectives.language_models import next_token

HELD = 0.02  # share of the novels' chapters that `tiny_text` was not trained on
Files = Sequence[tuple[str, Sequence[int]]]  # (name, tokens)


@dataclass(frozen=True)
class Case:
    """A prompt and what follows it.

    `start` and `end` bound the tokens of the prompt that hold the answer; both are 0
    where no one place does.
    """

    prompt: tuple[int, ...]
    context: int  # tokens before the question
    expected: tuple[int, ...]
    depth: float = 0.0  # of the answer's place: 0 the prompt's beginning, 1 its end
    start: int = 0
    end: int = 0

    @property
    def distance(self) -> int:
        """Count the tokens from the answer's place to the prompt's end."""
        return len(self.prompt) - self.start


def files(lm: Any, data: str = "") -> list[tuple[str, tuple[int, ...]]]:
    """Encode held-out files: the standard library's, or chapters of novels.

    Args:
        lm: the model, for its tokenizer.
        data: the folder that `tiny_text` was trained on; empty: the standard library,
            whose held-out files `tiny` has not seen.

    Returns:
        (name, tokens) of each.
    """
    if not data:
        texts = builtin_tasks.held_out()
    else:
        part = file_groups.Part(**tiny_text.get_config().data.parts[0])
        chapters = file_groups.texts(data, [part], "validation", HELD)
        texts = [(f"chapter {i}", text) for i, text in enumerate(chapters)]
    return [(name, tuple(lm.tokenizer.encode(text))) for name, text in texts]


def passages(texts: Files, count: int, size: int, seed: int) -> list[tuple[int, ...]]:
    """Draw passages of `size` tokens, from as many files as there are.

    Raises:
        DataError: no file has so many tokens.
    """
    long = [tokens for _, tokens in texts if len(tokens) >= size]
    if not long:
        raise DataError(
            f"no held-out file has {size} tokens: use shorter cases or longer text"
        )
    rng = np.random.default_rng([seed, size])
    order = rng.permutation(len(long))
    drawn = []
    for i in range(count):
        tokens = long[order[i % len(long)]]
        start = int(rng.integers(len(tokens) - size + 1))
        drawn.append(tuple(tokens[start : start + size]))
    return drawn


def share_right(case: Case, tokens: Sequence[int]) -> float:
    """Return the share of the expected tokens that `tokens` has in their places."""
    return float(np.mean([a == b for a, b in zip(case.expected, padded(case, tokens))]))


def padded(case: Case, tokens: Sequence[int]) -> list[int]:
    """Cut generated tokens to the expected ones' number; -1 where a text ended."""
    size = len(case.expected)
    return [*map(int, tokens[:size]), *[-1] * (size - len(tokens))]


def written(lm: Any, cases: Sequence[Case], **settings: Any) -> Any:
    """Decode all cases greedily; return the `Output`."""
    prompts = [list(case.prompt) for case in cases]
    longest = max(len(case.expected) for case in cases)
    return decoding.generate(lm, prompts, max_new_tokens=longest, **settings)


class Forced(NamedTuple):
    """What a model makes of a case's expected tokens, each after those before it."""

    best: list[int]  # the likeliest token in the place of each
    nats: list[float]  # -log p of each


def teacher_forced(lm: Any, cases: Sequence[Case]) -> list[Forced]:
    """Run the whole model over each case and its answer, without a cache."""
    size = max(len(case.prompt) + len(case.expected) for case in cases)
    size = -(-size // 128) * 128  # one program for prompts of about equal lengths

    @jax.jit
    def run(params: Any, tokens: Any) -> tuple[Any, Any]:
        logits = transformer.forward(lm.config, params, tokens[None, :-1]).logits
        nats = next_token.cross_entropy(logits, tokens[None, 1:])
        assert logits is not None
        return logits[0].argmax(-1), nats[0]

    out = []
    for case in cases:
        tokens = np.zeros(size, np.int32)
        first, last = len(case.prompt), len(case.prompt) + len(case.expected)
        tokens[:last] = [*case.prompt, *case.expected]
        best, nats = jax.device_get(run(lm.params, tokens))
        place = slice(first - 1, last - 1)
        out.append(Forced(best[place].tolist(), nats[place].tolist()))
    return out
