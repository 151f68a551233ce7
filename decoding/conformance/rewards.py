"""The contract of rewards: a worth belongs to a text, wherever the text stands."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from decoding.catalogue import Spec
from decoding.conformance import kit
from decoding.conformance.require import require
from decoding.hypotheses import reward as rewards
from decoding.hypotheses.rank import Sample
from decoding.hypotheses.reward import Reward
from decoding.loops import valuing
from decoding.method import Method

TEXTS = ([1, 2, 7], [0, 1, 0, 3, 5], [4], [2, 0, 1, 2, 0, 7])  # behind kit.PROMPTS
UNDER = Spec("rewards/keywords", words=("b", "ca"))  # what a wrapper wraps


def check(spec: Spec) -> None:
    """Check a reward against every contract of this file.

    Raises:
        AssertionError: it breaks a property; the message names it.
    """
    every_text_has_a_worth(spec)
    a_worth_is_of_the_text_alone(spec)


def of(spec: Spec, under: Spec = UNDER) -> Method:
    """Make a method that chooses by a reward, with its card's examples."""
    part = kit.spec(spec.name, **spec.arguments)
    inner = (under,) if "inner" in part.card.needs else ()
    return Method(search=Spec("search/best_of_n", samples=4), rewards=(*inner, part))


def values(
    spec: Spec,
    texts: Sequence[Sequence[int]] = TEXTS,
    filler: int = 0,
    under: Spec = UNDER,
    reward: Any = None,
) -> np.ndarray:
    """Value texts behind the first of `kit.PROMPTS`.

    Args:
        spec: the reward.
        texts: token lists.
        filler: the token behind every text.
        under: what a wrapper wraps.
        reward: a model or a head, in place of the kit's.
    """
    method, prompts = of(spec, under), kit.PROMPTS[: len(texts)]
    beside = kit.models(method) | ({} if reward is None else {"reward": reward})
    available = {**kit.PARTS, "model": kit.TARGET.model}
    available |= {name: getattr(x, "model", x) for name, x in beside.items()}
    built: Reward | None = None
    for part in method.rewards:
        built = part.build({**available, "inner": built})
    assert built is not None
    if built.ask is not None:
        return np.asarray(rewards.asked(built.ask, samples(texts)))
    whole = [[*prompt, *text] for prompt, text in zip(prompts, texts)]
    tokens = np.full((len(whole), kit.SIZE), filler, np.int32)
    for row, text in zip(tokens, whole):
        row[: len(text)] = text
    lengths = [jnp.asarray([len(x) for x in rows]) for rows in (prompts, whole)]
    params = {"target": kit.TARGET.params}
    params |= {name: getattr(x, "params", x) for name, x in beside.items()}
    run = jax.jit(functools.partial(valuing.of_rows, built, kit.TARGET.model))
    state = built.init(len(texts))
    return np.asarray(run(params, state, (jnp.asarray(tokens), *lengths)))


def samples(texts: Sequence[Sequence[int]]) -> list[Sample]:
    """Make samples of the toy model's letters, one for each prompt."""
    decode = kit.TARGET.tokenizer.decode
    return [
        Sample([*t], decode([*t]), [-0.5 - x / 8 for x in t], t[-1] == kit.EOS, i)
        for i, t in enumerate(texts)
    ]


def every_text_has_a_worth(spec: Spec) -> None:
    """Require a number for every text, and not one for all."""
    found = values(spec)
    require(not np.isnan(found).any(), spec, f"a worth is no number: {found}")
    require(len({*found.tolist()}) > 1, spec, "all texts have one worth")


def a_worth_is_of_the_text_alone(spec: Spec) -> None:
    """Require the same worth alone, and whatever stands behind the text."""
    together = values(spec)
    for i in range(2):
        alone = values(spec, TEXTS[: i + 1])[i]
        require(alone == together[i], spec, f"text {i} has another worth alone")
    behind = values(spec, filler=3)
    require((behind == together).all(), spec, "tokens behind a text change its worth")
