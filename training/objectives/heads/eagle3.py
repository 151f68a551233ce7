"""EAGLE-3: train the draft layer on the target's distribution, after its own outputs.

Li et al., *EAGLE-3*, 2025, arXiv 2503.01840, section 3.2 (training-time test):

    L = sum_s decay^s mean_t (-sum p_{t+1+s} log q_s),    s = 0 .. steps - 1

where p is the target's distribution, and q_s is drafted from the outputs of step s - 1.
p is normalised on the draft vocabulary; positions whose likeliest token is outside have
weight 0, and the mean is over the others.

Deviations: the official loss is a mean over all B T positions, with 0 at those of
weight 0, so that the recipe's bound on the gradient acts on a smaller one there.

Metrics: `hit_s` and `alpha_s` of all positions with the whole p, given that the tokens
before are the text's. A token that the draft cannot guess is a miss.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from models.errors import ConfigError
from models.heads import eagle3
from models.heads.modules import decoder_layer
from training import draft_metrics, losses
from training.loop.train_step import Objective
from training.teacher.outputs import Teacher, ahead, predicted

# For tests of all heads: small, depth 3, no noise that depends on a batch's shape.
EXAMPLE: dict = {"init": {}, "objective": {"steps": 3}}


def init(
    key: Array,
    model: Any,
    target: Any,
    kept: np.ndarray | None = None,
    fuse_norm: str = "",
    output_norm: bool = False,
) -> Any:
    """Initialise a random layer of the target's size; arguments are `eagle3.init`'s."""
    rows = decoder_layer.output_rows(target)
    return eagle3.init(key, model.config, rows, kept, fuse_norm, output_norm)


def draft_vocabulary(tokens: Any, vocab_size: int, count: int) -> dict[str, Any]:
    """Return the `count` most frequent `tokens`, for `init` and `objective`."""
    return {"kept": eagle3.most_frequent(tokens, vocab_size, count)}


def objective(
    model: Any,
    steps: int = 7,
    decay: float = 0.8,
    loss: str = "soft_ce",
    part: int = 0,
    kept: Any = None,
    remat: bool = True,
    taps: Sequence[int] = (),
) -> Objective:
    """Build the loss of `steps` own steps.

    Args:
        model: the target's.
        steps: depth of the training-time test.
        decay: weight of each step relative to the one before.
        loss: a name of `losses.LOSSES`.
        part: positions whose logits exist at a time; 0: all.
        kept: int32[W], the draft vocabulary; None: all tokens.
        remat: recompute each step in the backward pass, so that one exists at a time.
        taps: three states to read, by layer and rising; (): the paper's.

    Raises:
        ConfigError: no step, or an unknown loss.
    """
    if steps < 1:
        raise ConfigError(f"steps={steps}: use at least 1")
    graded, config = losses.by_name(loss), model.config
    eps, read = decoder_layer.geometry(config).norm_eps, eagle3.taps(config, taps)

    def total(params: Any, batch: dict[str, Array], teacher: Teacher) -> tuple:
        masks = jnp.stack([predicted(batch, 2 + s) for s in range(steps)])

        def each(s: Array, a: Array) -> dict[str, Array]:
            law = ahead(teacher.law, 1 + s)
            return draft_metrics.against_teacher(
                teacher,
                lambda a: eagle3.logits(params, a, eps),
                a,
                law,
                masks[s],
                graded,
                part,
                kept,
            )

        sums = _unroll(params, batch, teacher, steps, each)
        names = ("loss", "hit", "alpha")
        each_step = {name: draft_metrics.mean(sums, name) for name in names}
        metrics = {
            f"{name}_{s}": each_step[name][s]
            for name in ("hit", "alpha")
            for s in range(steps)
        }
        return (decay ** jnp.arange(steps) * each_step["loss"]).sum(), metrics

    def _unroll(params, batch, teacher, steps, each):
        three = jnp.stack([teacher.hidden[tap] for tap in read], 2)
        g = eagle3.features(params, three, eps)
        embedded = ahead(teacher.embed(batch["tokens"]), 1)
        segments = batch.get("segments")
        return eagle3.unroll(params, config, embedded, g, steps, each, remat, segments)

    def quantity(params: Any) -> str:
        return f"sum over {steps} steps times {decay:g}^i, {loss} a token"

    return Objective(
        total, lambda batch: predicted(batch, 2).sum(), read, quantity=quantity
    )


def guesses(
    params: Any,
    model: Any,
    batch: dict[str, Array],
    teacher: Teacher,
    depth: int,
    taps: Sequence[int] = (),
) -> list:
    """Return, by depth, the draft's outputs along the text's tokens, and its head."""
    config = model.config
    eps = decoder_layer.geometry(config).norm_eps
    read = eagle3.taps(config, taps)
    three = jnp.stack([teacher.hidden[tap] for tap in read], 2)
    g = eagle3.features(params, three, eps)
    embedded = ahead(teacher.embed(batch["tokens"]), 1)
    segments, each = batch.get("segments"), lambda s, x: x
    outputs = eagle3.unroll(params, config, embedded, g, depth, each, segments=segments)

    def draft(a: Array) -> Array:
        return eagle3.spread(params, eagle3.logits(params, a, eps), config.vocab_size)

    return [(outputs[i], draft) for i in range(depth)]
