"""Chimera: train every head on the token at its distance, after the draft's guesses.

Zeng et al., *Chimera*, 2024, arXiv 2402.15758, section 3.3. At every position t
head i's distribution q_i follows the tokens x_{.. t+1} and the draft's own likeliest
tokens after them:

    L = sum_i mean_t -log q_i(x_{t+2+i}),    i = 0 .. K - 1

The keys of earlier steps are constants for the gradient.

Deviations: those of `models/heads/chimera.py`. In the official code all inputs of the
steps i >= 1 are constants for the gradient.

Metrics: `hit_i`, how often head i's first guess is the text's token, on own guesses.
"""

from typing import Any

import jax.numpy as jnp
from jax import Array

from decoding import vocab
from models.heads import chimera
from models.heads.modules import decoder_layer
from training import draft_metrics
from training.loop.train_step import Objective
from training.teacher.outputs import NORM, Teacher, ahead, by_part, predicted

# For tests of all heads: small, depth 3, no noise that depends on a batch's shape.
EXAMPLE: dict = {"init": {"heads": 3}, "objective": {}}


def init(key: Array, model: Any, target: Any, heads: int = 4) -> Any:
    """Initialise `heads` heads for the target's params."""
    return chimera.init(key, model.config, decoder_layer.output_rows(target), heads)


def objective(model: Any, part: int = 0) -> Objective:
    """Build the cross-entropy; logits of `part` positions exist at a time (0: all)."""

    def loss(params: Any, batch: dict[str, Array], teacher: Teacher) -> tuple:
        hidden = teacher.hidden[NORM]

        def choose(i: int, output: Array) -> Array:
            def best(hidden: Array, output: Array) -> Array:
                return vocab.argmax(chimera.logits(params, i, hidden, output))

            return teacher.embed(by_part(best, part, hidden, output))

        total: Any = 0.0
        metrics = {}
        count = chimera.count(params)
        outputs = _guesses(params, model, batch, teacher, count, choose, True)
        for i, (states, draft) in enumerate(outputs):
            labels, weights = ahead(batch["tokens"], 2 + i), predicted(batch, 2 + i)
            sums = draft_metrics.against_labels(draft, states, labels, weights, part)
            total = total + draft_metrics.mean(sums, "loss")
            metrics[f"hit_{i}"] = draft_metrics.mean(sums, "hit")
        return total, metrics

    def quantity(params: Any) -> str:
        return f"sum over {chimera.count(params)} heads, nats a token"

    return Objective(
        loss, lambda batch: predicted(batch, 2).sum(), (NORM,), quantity=quantity
    )


def guesses(
    params: Any, model: Any, batch: dict[str, Array], teacher: Teacher, depth: int
) -> list:
    """Return, by depth, [h ; o] [B, T, 2 D] along the text, and the head's logits."""
    embedded = teacher.embed(batch["tokens"])
    count = min(depth, chimera.count(params))

    def choose(i: int, output: Array) -> Array:
        return ahead(embedded, 2 + i)

    return _guesses(params, model, batch, teacher, count, choose)


def _guesses(params, model, batch, teacher, count, choose, detach=False) -> list:
    hidden = teacher.hidden[NORM]
    embedded = teacher.embed(batch["tokens"])
    segments = batch.get("segments")
    outputs = chimera.unroll(
        params, model.config, hidden, embedded, count, choose, detach, segments
    )

    def head(i: int, u: Array) -> Array:
        h, o = jnp.split(u, 2, -1)
        return chimera.logits(params, i, h, o)

    return [
        (jnp.concatenate([hidden, o], -1), lambda u, i=i: head(i, u))
        for i, o in enumerate(outputs)
    ]
