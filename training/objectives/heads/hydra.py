"""Hydra: train heads that read the tokens before theirs; the target is frozen.

Ankner et al., *Hydra*, 2024, arXiv 2402.05109, sections 3.2 and 4. With y the tokens
of the text (teacher forcing) and p the target's distribution,

    L = sum_i mean_t [ label (-log q_i(y_{t+2+i})) + soft (-sum p_{t+1+i} log q_i) ]

Hydra: label = 1, soft = 0. Hydra++: label = 0, soft = 1, the prefix layer, four
residual blocks and, as in the official code, dropout before every block. A position's
mask depends on the seed, the batch, the head, the block and the position alone. So it
is the same however the positions are cut into parts.

Metrics: `hit_i`, how often head i's first guess, given the tokens before it, is the
text's token (label) or the target's likeliest (soft).
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from models.errors import ConfigError
from models.heads import hydra
from models.heads.modules import decoder_layer
from training import draft_metrics, losses
from training.loop.train_step import Objective
from training.teacher.outputs import NORM, Teacher, ahead, numbered, predicted

# For tests of all heads: small, depth 3, no noise that depends on a batch's shape.
EXAMPLE: dict = {"init": {"heads": 3, "prefix": True}, "objective": {"soft": 1.0}}


def init(
    key: Array,
    model: Any,
    target: Any,
    heads: int = 4,
    prefix: bool = False,
    deep: bool = False,
) -> Any:
    """Initialise heads for the target's params; Hydra++ has `prefix` and `deep`."""
    rows = decoder_layer.output_rows(target)
    return hydra.init(key, model.config, rows, heads, prefix, deep)


def objective(
    model: Any,
    label: float = 1.0,
    soft: float = 0.0,
    blocks: int = 4,
    dropout: float = 0.0,
    seed: int = 0,
    part: int = 0,
) -> Objective:
    """Build the weighted losses; logits of `part` positions exist at a time (0: all).

    `label` and `soft` weigh the two terms; `blocks` are the residual blocks of a head;
    `seed` is that of `dropout`.
    """
    if label + soft <= 0:
        raise ConfigError(f"label={label}, soft={soft}: one of them must be positive")
    if not 0.0 <= dropout < 1.0:
        raise ConfigError(f"dropout={dropout}: use a share in [0, 1)")

    def loss(params: Any, batch: dict[str, Array], teacher: Teacher) -> tuple:
        drop = dropped(dropout, seed, batch) if dropout else None
        inputs = guesses(
            params, model, batch, teacher, hydra.count(params), blocks, drop
        )
        total: Any = 0.0
        metrics = {}
        for i, (states, draft) in enumerate(inputs):
            weights = predicted(batch, 2 + i)
            if label:
                labels = ahead(batch["tokens"], 2 + i)
                sums = draft_metrics.against_labels(
                    draft, states, labels, weights, part
                )
                total = total + label * draft_metrics.mean(sums, "loss")
            if soft:
                hidden = ahead(teacher.hidden[NORM], 1 + i)
                sums = draft_metrics.against_teacher(
                    teacher, draft, states, hidden, weights, losses.soft_ce, part
                )
                total = total + soft * draft_metrics.mean(sums, "loss")
                metrics[f"alpha_{i}"] = draft_metrics.mean(sums, "alpha")
            metrics[f"hit_{i}"] = draft_metrics.mean(sums, "hit")
        return total, metrics

    def quantity(params: Any) -> str:
        return f"sum over {hydra.count(params)} heads, nats a token"

    return Objective(
        loss, lambda batch: predicted(batch, 2).sum(), (NORM,), quantity=quantity
    )


def guesses(
    params: Any,
    model: Any,
    batch: dict[str, Array],
    teacher: Teacher,
    depth: int,
    blocks: int = 4,
    drop: Any = None,
) -> list:
    """Return, by depth i, inputs g, e, .. [B, T, D], i + 2 of them, and the head.

    Inputs are joined where logits are made, for a part of the positions at a time.
    Joined for the whole text, four heads would need 14 arrays where 5 hold the same,
    and gradients would be computed for the frozen target's embeddings. With `drop`, of
    `dropped`, the positions' numbers int32[B, T] are the last input.
    """
    g = teacher.hidden[NORM]
    if hydra.config_of(params).prefix:
        g = hydra.prefix_sequence(params, model.config, g, batch.get("segments"))
    embedded = teacher.embed(batch["tokens"])
    each = [g]
    pairs = []
    for i in range(min(depth, hydra.count(params))):
        each.append(ahead(embedded, 1 + i))

        def draft(inputs: tuple, i: int = i) -> Array:
            masked = None
            if drop:
                masked = functools.partial(drop, i, inputs[-1])
                inputs = inputs[:-1]
            return hydra.logits(params, i, jnp.stack(inputs, -2), blocks, masked)

        numbers = (numbered(batch["tokens"].shape),) if drop else ()
        pairs.append(((*each, *numbers), draft))
    return pairs


def dropped(rate: float, seed: int, batch: dict[str, Array]) -> Any:
    """Build inverted dropout, its masks from the seed and the first row's number.

    Returns:
        `drop(head, places, block, x)`: `x` [..., *] with a mask for each of `places`
        int32[...], drawn anew for every head and block.
    """
    batch_key = jax.random.fold_in(jax.random.key(seed), batch["row"][0])

    def drop(head: int, places: Array, block: int, x: Array) -> Array:
        key = jax.random.fold_in(jax.random.fold_in(batch_key, head), block)
        shape = x.shape[places.ndim :]

        def one(place: Array) -> Array:
            return jax.random.bernoulli(jax.random.fold_in(key, place), 1 - rate, shape)

        mask = jax.vmap(one)(places.reshape(-1)).reshape(x.shape)
        return jnp.where(mask, x / (1 - rate), 0.0)

    return drop
