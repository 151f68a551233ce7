"""Falcon: train the layer on features k tokens ahead, some of them revealed.

Gao et al., *Falcon*, 2025, arXiv 2412.12639, section 3.2 (coupled sequential glancing
distillation). A first pass counts a text's wrong guesses, n. Then at lambda n of its
positions the pair (x_{s+1}, f_s) is replaced by its answer (x_{s+1+k}, h_{s+k}). The
block's other positions so train beside correct features:

    L = mean_s SmoothL1(f^_{s+k}, h_{s+k})
        + soft mean_s [ (1 - hard) KL(p || q at the temperature) + hard (-log q(y)) ]

over the positions that were not revealed, y a draw from p. lambda falls linearly from
least + glance to least over the first `rows` rows of the stream.

Deviations from the paper: a reconstruction where the official code, which does not run
as it is, leaves questions: the revealed pairs are as above, and revealed positions have
weight 0. Both distributions take the temperature. Blocks begin at an offset that
changes with the batch, since a draft's first block may end anywhere. No dropout.

Metrics: `hit_0` and `alpha_0` of all guesses of the first pass, `feature`.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from decoding import vocab
from models.errors import ConfigError
from models.heads import falcon
from training import draft_metrics, losses
from training.loop.train_step import Objective
from training.objectives.heads import eagle
from training.teacher.outputs import (
    NORM,
    Teacher,
    ahead,
    by_part,
    mean,
    numbered,
    predicted,
)

# For tests of all heads: small, depth 3, no noise that depends on a batch's shape.
EXAMPLE: dict = {
    "init": {},
    "objective": {"noise": 0.0, "glance": 0.0, "least": 0.0, "hard": 0.0},
}


def init(key: Array, model: Any, target: Any) -> Any:
    """Initialise a random LSTM and layer of the target's size."""
    return falcon.init(key, model.config)


def objective(
    model: Any,
    k: int = 2,
    soft: float = 0.1,
    hard: float = 0.1,
    temperature: float = 0.95,
    glance: float = 0.35,
    least: float = 0.1,
    rows: int = 0,
    noise: float = 0.2,
    seed: int = 0,
    part: int = 0,
) -> Objective:
    """Build the paper's loss.

    Args:
        model: the target's.
        k: tokens of a block.
        soft: weight of the second term.
        hard: share of the drawn label in it.
        temperature: of both distributions in the KL.
        glance: range of lambda.
        least: lowest lambda.
        rows: rows over which lambda falls; 0 keeps it in the middle of its range.
        noise: `eagle.noisy`'s.
        seed: of the noise, the revealed positions and the labels.
        part: positions whose logits exist at a time; 0: all.

    Raises:
        ConfigError: lambda outside [0, 1], or an empty block.
    """
    if not 0.0 <= least <= least + glance <= 1.0 or k < 1:
        raise ConfigError(
            f"k={k}, least={least}, glance={glance}: use k of at least 1, and least "
            "and least + glance in [0, 1]"
        )

    def loss(params: Any, batch: dict[str, Array], teacher: Teacher) -> tuple:
        hidden = teacher.hidden[NORM]
        features = eagle.noisy(hidden, batch, noise, seed)
        token = teacher.embed(batch["tokens"])
        embedded, targets = ahead(token, 1), ahead(hidden, k)
        number = batch["row"][0]
        offset = number // batch["tokens"].shape[0] % k
        keys = jax.random.split(jax.random.fold_in(jax.random.key(seed + 1), number))
        weights = predicted(batch, k + 1)

        def run(embedded: Array, features: Array) -> Array:
            config, segments = model.config, batch.get("segments")
            return falcon.sequence(
                params, config, embedded, features, k, offset, segments
            )

        first = lax.stop_gradient(run(embedded, features))
        first_sums = lax.stop_gradient(
            draft_metrics.against_teacher(
                teacher, teacher.head, first, targets, weights, losses.kl, part
            )
        )
        wrong = weights * (
            by_part(lambda x: vocab.argmax(teacher.head(x)), part, first)
            != by_part(lambda x: vocab.argmax(teacher.head(x)), part, targets)
        )
        share: Any = jnp.clip(number / rows, 0, 1) if rows else 0.5
        reveal = revealed(keys[0], wrong, weights, least + glance * (1 - share))
        pick = reveal[..., None]
        outputs = run(
            jnp.where(pick, ahead(token, 1 + k), embedded),
            jnp.where(pick, targets, features),
        )
        weights = jnp.where(reveal, 0.0, weights)
        near = mean(losses.smooth_l1(outputs, targets), weights)

        def law(p: Array, q: Array, places: Array) -> Array:
            each = jax.vmap(lambda place: jax.random.fold_in(keys[1], place))(places)
            label = jax.vmap(vocab.sample)(each, p)
            tempered = losses.kl(p / temperature, q / temperature)
            return (1 - hard) * tempered + hard * losses.ce(q, label)

        sums = draft_metrics.against_teacher(
            teacher,
            teacher.head,
            outputs,
            targets,
            weights,
            law,
            part,
            places=numbered(weights.shape),
        )
        metrics = {
            "feature": near,
            "hit_0": draft_metrics.mean(first_sums, "hit"),
            "alpha_0": draft_metrics.mean(first_sums, "alpha"),
        }
        return near + soft * draft_metrics.mean(sums, "loss"), metrics

    def quantity(params: Any) -> str:
        return f"states' L1 + {soft:g} x nats, mean a token"

    return Objective(
        loss, lambda batch: predicted(batch, k + 1).sum(), (NORM,), quantity=quantity
    )


def revealed(key: Array, wrong: Array, weights: Array, share: Array | float) -> Array:
    """Choose positions bool[B, T] to reveal: `share` times each row's wrong guesses.

    The number is rounded down. They are drawn from all positions with weight.
    """
    drawn = jnp.where(weights > 0, jax.random.uniform(key, weights.shape), 2.0)
    rank = jnp.argsort(jnp.argsort(drawn, 1), 1)
    count = jnp.floor(share * wrong.sum(1, keepdims=True))
    return (rank < count) & (weights > 0)


def guesses(
    params: Any,
    model: Any,
    batch: dict[str, Array],
    teacher: Teacher,
    depth: int,
    k: int = 2,
) -> list:
    """Return, by depth, the draft's features along the text's tokens, and the head."""
    embedded = ahead(teacher.embed(batch["tokens"]), 1)
    features = teacher.hidden[NORM]
    segments = batch.get("segments")
    outputs = falcon.unroll(
        params, model.config, embedded, features, depth, k, segments
    )
    return [(x, teacher.head) for x in outputs]
