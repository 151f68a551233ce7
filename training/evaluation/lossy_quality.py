"""Speed of lossy methods, and the distance of their texts from the target's.

Texts are scored by the whole target, whatever model they were decoded with. `nats`: its
mean -log p of their tokens, beside plain decoding's own. `same`: the share of prompts
whose text is plain decoding's. `shared`: the share of tokens before the first
difference.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import decoding
from models import transformer

Rows = Sequence[Sequence[int]]


def scorer(lm: Any, size: int) -> Callable[[Sequence[int], Sequence[int]], float]:
    """Build `nats(prompt, text)`, for at most `size` tokens of both together."""

    @jax.jit
    def one(params: Any, tokens: Any) -> Any:
        logits: Any = transformer.forward(lm.config, params, tokens).logits
        logp = jax.nn.log_softmax(logits[:, :-1].astype(jnp.float32))
        return jnp.take_along_axis(logp, tokens[:, 1:, None], -1)[0, :, 0]

    def nats(prompt: Sequence[int], text: Sequence[int]) -> float:
        row = np.zeros((1, size), np.int32)
        row[0, : len(prompt) + len(text)] = [*prompt, *text]
        logps, start = np.asarray(one(lm.params, row)), len(prompt) - 1
        return -float(logps[start : start + len(text)].sum())

    return nats


def compared(
    lm: Any,
    prompts: Rows,
    methods: Mapping[str, tuple[decoding.Method, Mapping[str, Any]]],
    new_tokens: int,
    temperature: float,
    seed: int = 0,
) -> dict[str, dict[str, Any]]:
    """Decode prompts by every method, and compare the texts with plain decoding's.

    Prompts are decoded one by one.

    Args:
        lm: the target.
        prompts: token ids.
        methods: name -> method and its drafts; "plain" is added.
        new_tokens: tokens of a text.
        temperature: of every method.
        seed: of the first prompt; the next have the next ones.

    Returns:
        name -> tokens per call, and the figures above. `each` holds the counts of every
        prompt (`new` tokens, target `calls`, `nats`, tokens `shared` of those `due`),
        and `exits` the exits' own counts.
    """
    rows: dict[str, dict[str, Any]] = {}
    plain: list = []
    nats = scorer(lm, max(map(len, prompts)) + new_tokens)
    for name, (method, drafts) in {
        "plain": (decoding.Method(), None),
        **methods,
    }.items():
        outs = [
            decoding.generate(
                lm,
                [prompt],
                method,
                max_new_tokens=new_tokens,
                temperature=temperature,
                seed=seed + i,
                drafts=drafts,
                width="paper",
            )
            for i, prompt in enumerate(prompts)
        ]
        texts = [out.tokens[0] for out in outs]
        plain = plain or texts
        each: dict[str, list] = {
            "new": [len(text) for text in texts],
            "calls": [int(out.stats.target_calls.sum()) for out in outs],
            "nats": [nats(p, text) for p, text in zip(prompts, texts)],
            "shared": [shared(a, b) for a, b in zip(texts, plain)],
            "due": [len(text) for text in plain],
        }
        sums = {key: sum(values) for key, values in each.items()}
        rows[name] = {
            "tokens_per_call": sums["new"] / max(sums["calls"], 1),
            "nats": sums["nats"] / max(sums["new"], 1),
            "same": float(np.mean([a == b for a, b in zip(texts, plain)])),
            "shared": sums["shared"] / max(sums["due"], 1),
            "each": each,
            "exits": [out.exits for out in outs],
        }
    return rows


def shared(text: Sequence[int], other: Sequence[int]) -> int:
    """Count the tokens before the first difference."""
    same = 0
    for a, b in zip(text, other):
        if a != b:
            break
        same += 1
    return same
