"""What a lossy method gains, and how far its text is from the target's.

Texts are scored by the whole target, whatever model they were decoded with: `nats`, its
mean -log p of their tokens, beside plain decoding's own; `same`, the share of prompts
whose text is plain decoding's; `shared`, the share of tokens before the first that is
not.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import decoding
from models import transformer

Rows = Sequence[Sequence[int]]


def score(lm: Any, prompts: Rows, texts: Rows) -> float:
    """Nats a token of `texts`, each after its prompt."""
    size = max(len(p) + len(t) for p, t in zip(prompts, texts))

    @jax.jit
    def one(params: Any, tokens: Any) -> Any:
        logits: Any = transformer.forward(lm.config, params, tokens).logits
        logp = jax.nn.log_softmax(logits[:, :-1].astype(jnp.float32))
        return jnp.take_along_axis(logp, tokens[:, 1:, None], -1)[0, :, 0]

    total, count = 0.0, 0
    for prompt, text in zip(prompts, texts):
        row = np.zeros((1, size), np.int32)
        row[0, : len(prompt) + len(text)] = [*prompt, *text]
        found = np.asarray(one(lm.params, row))
        total -= float(found[len(prompt) - 1 : len(prompt) - 1 + len(text)].sum())
        count += len(text)
    return total / max(count, 1)


def compared(
    lm: Any,
    prompts: Rows,
    methods: Mapping[str, decoding.Method],
    drafts: Mapping[str, Any],
    new_tokens: int,
    temperature: float,
    seed: int = 0,
) -> dict[str, dict[str, Any]]:
    """name -> tokens per call and what is said above; "plain" is there by itself.

    `memory` is what the drafter left, for the caller to read.
    """
    found: dict[str, dict[str, Any]] = {}
    plain: list = []
    for name, method in {"plain": decoding.Method(), **methods}.items():
        out = decoding.generate(
            lm,
            prompts,
            method,
            max_new_tokens=new_tokens,
            temperature=temperature,
            seed=seed,
            drafts=drafts if name != "plain" else None,
        )
        plain = plain or out.tokens
        found[name] = {
            "tokens_per_call": float(out.stats.tokens_per_call),
            "nats": score(lm, prompts, out.tokens),
            "same": float(np.mean([a == b for a, b in zip(out.tokens, plain)])),
            "shared": shared(out.tokens, plain),
            "memory": out.memory,
        }
    return found


def shared(texts: Rows, others: Rows) -> float:
    """The share of the tokens of `others` that stand before the first difference."""
    same, count = 0, 0
    for text, other in zip(texts, others):
        count += len(other)
        for a, b in zip(text, other):
            if a != b:
                break
            same += 1
    return same / max(count, 1)
