"""Process rewards: the worth of a text is that of its steps.

Lightman, Kosaraju, Burda, Edwards, Baker, Lee, Leike, Schulman, Sutskever, Cobbe,
*Let's Verify Step by Step*, 2023, arXiv 2305.20050, section 2.6. A step ends with the
last token of a line, or with the text. With v_1 .. v_S another reward of the beginnings
that end with a step,

    r(y) = prod_s v_s        or their least, their mean, the last        -> reduce

Deviations: none. Cost: that of the other reward; on the host S texts in place of one.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from decoding import base
from decoding.catalogue import Card
from decoding.hypotheses import reward as rewards
from decoding.hypotheses.rank import Sample
from decoding.hypotheses.reward import PREFIX, Reward
from decoding.text_lookup import token_marks
from models.errors import MethodError

CARD = Card(
    paper="Process rewards, arXiv 2305.20050",
    guarantee=base.LOSSY,
    family="wrapper",
    needs=("inner", "tokenizer", "vocab_size"),
    examples={"separator": "a"},
    sources=("lightman2023verify",),
)

REDUCE = ("product", "least", "mean", "last")


def reward(
    inner: Reward,
    tokenizer: Any,
    vocab_size: int,
    reduce: str = "product",
    separator: str = "\n",
) -> Reward:
    """Value texts by another reward of their steps.

    Args:
        inner: the other reward, of beginnings too.
        tokenizer: the target's, whose tokens that hold `separator` end a step.
        vocab_size: the target's.
        reduce: "product", "least", "mean" or "last".
        separator: characters, of one token or a part of it.
    """
    if reduce not in REDUCE:
        raise MethodError(f"reduce={reduce!r}: use one of {REDUCE}")
    if inner.level != PREFIX:
        raise MethodError(
            "the reward under rewards/steps values whole texts alone: use one that "
            "values beginnings, such as rewards/value_head"
        )
    ends = token_marks.holding(tokenizer, vocab_size, separator)

    def is_end(tokens: Array, prompt: Array, length: Array) -> Array:
        index = jnp.arange(tokens.shape[0])
        text = (index >= prompt) & (index < length)
        return text & (jnp.asarray(ends)[tokens] | (index == length - 1))

    def over(values: Array, at: Array) -> Array:
        """★ Reduce values [T] at the steps' ends bool[T]."""
        if reduce == "product":
            return jnp.where(at, values, 1.0).prod()
        if reduce == "least":
            return jnp.where(at, values, jnp.inf).min()
        if reduce == "mean":
            return jnp.where(at, values, 0.0).sum() / jnp.maximum(at.sum(), 1)
        return values[jnp.argmax(jnp.where(at, jnp.arange(at.shape[0]), -1))]

    if inner.ask is not None:
        ask_inner = inner.ask

        def ask(samples: Sequence[Sample]) -> list[float]:
            parts, sizes = [], []
            for sample in samples:
                found = beginnings(sample)
                parts += found
                sizes.append(len(found))
            values = np.asarray(rewards.asked(ask_inner, parts), np.float64)
            split = np.split(values, np.cumsum(sizes)[:-1])
            by: dict[str, Any] = {"product": np.prod, "least": np.min, "mean": np.mean}
            pick = by.get(reduce, lambda x: x[-1])
            return [float(pick(v)) if len(v) else 0.0 for v in split]

        def beginnings(sample: Sample) -> list[Sample]:
            at = [i + 1 for i, token in enumerate(sample.tokens) if ends[token]]
            at = sorted({*at, len(sample.tokens)} - {0})
            return [cut(sample, i) for i in at]

        def cut(sample: Sample, size: int) -> Sample:
            if size == len(sample.tokens):
                return sample
            tokens = sample.tokens[:size]
            text = None if sample.text is None else tokenizer.decode(tokens)
            logprobs = sample.logprobs[:size]
            return sample._replace(
                tokens=tokens, text=text, logprobs=logprobs, ended=False
            )

        return inner._replace(ask=ask)

    if inner.score is not None:
        score_inner = inner.score

        def score(
            state: base.State, tokens: Array, prompt: Array, length: Array
        ) -> Array:
            sizes = jnp.arange(1, tokens.shape[0] + 1)
            each = jax.lax.map(lambda n: score_inner(state, tokens, prompt, n), sizes)
            return over(each, is_end(tokens, prompt, length))

        return inner._replace(score=score)

    def combine(
        state: base.State, values: Array, tokens: Array, prompt: Array, length: Array
    ) -> Array:
        return over(values, is_end(tokens, prompt, length))

    return inner._replace(reduce=combine)
