"""P-EAGLE: all depths of a pass against the target's law, deeper ones at fewer places.

Hui et al., *P-EAGLE*, 2026, arXiv 2602.01469. With a_j the outputs of
`models/heads/p_eagle.py` and p the target's law,

    L = sum_j sum_{t in P_j} KL(p_{t+1+j} || q_j) / sum_j |P_j|

P_0 are all places that may be learned. P_j holds a drawn share max(keep^j, least) of
those of depth 1, where its own token may be learned, within P_{j-1}: so that the pairs
of a text grow by a few times and not by K. p is normalised on the draft vocabulary;
places whose likeliest token is outside have no loss. The published training: K = 8,
keep 0.7, AdamW at 1e-4.

Deviations: the places of depth 1, all that a pass is made of, also serve the deeper
ones, whose losses are then left out; the paper leaves their pairs out.

Metrics: `hit_j` and `alpha_j` of each depth, where it is graded.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from models.errors import ConfigError
from models.heads import eagle3, p_eagle
from models.heads.modules import decoder_layer
from training import draft_metrics, losses
from training.loop.train_step import Objective
from training.objectives import drawn_places
from training.teacher.outputs import Teacher, ahead, predicted

# For tests of all heads: small, depth 3, a pass at every token of their texts.
EXAMPLE: dict = {"init": {"layers": 2, "depths": 3}, "objective": {"keep": 1.0}}


def init(
    key: Array,
    model: Any,
    target: Any,
    kept: np.ndarray | None = None,
    layers: int = 4,
    depths: int = 8,
) -> Any:
    """Draw layers of the target's size; `kept`: the draft vocabulary."""
    rows = decoder_layer.output_rows(target)
    return p_eagle.init(key, model.config, rows, kept, layers, depths)


def draft_vocabulary(tokens: Any, vocab_size: int, count: int) -> dict[str, Any]:
    """Return the `count` most frequent `tokens`, for `init` and `objective`."""
    return {"kept": eagle3.most_frequent(tokens, vocab_size, count)}


def objective(
    model: Any,
    keep: float = 0.7,
    least: float = 0.2,
    loss: str = "kl",
    seed: int = 0,
    part: int = 0,
    kept: Any = None,
    taps: Sequence[int] = (),
) -> Objective:
    """Build the loss.

    Args:
        model: the target's.
        keep: share of a depth's places that the next one keeps.
        least: share of them that every depth keeps.
        loss: a name of `losses.LOSSES`.
        seed: of the places.
        part: positions whose logits exist at a time; 0: all.
        kept: int32[W], the draft vocabulary; None: all tokens.
        taps: three states to read, rising; (): EAGLE-3's.

    Raises:
        ConfigError: shares outside of (0, 1], or an unknown loss.
    """
    if not 0 < keep <= 1 or not 0 <= least <= 1:
        raise ConfigError(f"keep={keep}, least={least}: use shares, keep above 0")
    graded, config = losses.by_name(loss), model.config
    eps, read = decoder_layer.geometry(config).norm_eps, eagle3.taps(config, taps)

    def total(params: Any, batch: dict[str, Array], teacher: Teacher) -> tuple:
        depths = p_eagle.config_of(params).depths
        length = batch["tokens"].shape[1]
        count = max(round(keep * length), 1)
        able = predicted(batch, 3)  # where a pair of masks may be learned
        whole = able.sum(1, keepdims=True)
        order = drawn_places.drawn(able, batch, count, seed)
        first, more = outputs(params, model, batch, teacher, order, read)
        able = jnp.take_along_axis(able, order, 1)
        each = []
        for j in range(depths):
            weights, law = predicted(batch, 2 + j), ahead(teacher.law, 1 + j)
            states = first
            if j:
                share = max(keep**j, least)
                kept_places = able.cumsum(1) <= jnp.ceil(share * whole)
                weights = jnp.take_along_axis(weights, order, 1) * kept_places
                law = jax.vmap(lambda row, at: row[at])(law, order)
                states = more[:, :, j - 1]
            draft = lambda a: p_eagle.logits(params, a, eps)
            each.append(
                draft_metrics.against_teacher(
                    teacher, draft, states, law, weights, graded, part, kept
                )
            )
        sums = sum(s["loss"] for s in each)
        places = jnp.maximum(sum(s["graded"] for s in each), 1.0)
        metrics = {
            f"{name}_{j}": draft_metrics.mean(s, name)
            for name in ("hit", "alpha")
            for j, s in enumerate(each)
        }
        return sums / places, lax.stop_gradient(metrics)

    def quantity(params: Any) -> str:
        return (
            f"{loss}, mean over the places of {p_eagle.config_of(params).depths} depths"
        )

    return Objective(
        total, lambda batch: predicted(batch, 2).sum(), read, quantity=quantity
    )


def outputs(
    params: Any,
    model: Any,
    batch: dict[str, Array],
    teacher: Teacher,
    order: Array,
    read: Sequence[int],
) -> tuple[Array, Array]:
    """Compute a of depth 0 [B, T, D], and of the others at `order` [B, A, K - 1, D]."""
    three = jnp.stack([teacher.hidden[tap] for tap in read], 2)
    g = decoder_layer.joint(three, params["fuse"])
    theirs = teacher.embed(batch["tokens"])
    embedded = ahead(p_eagle.embed(params, batch["tokens"], theirs), 1)
    segments = batch.get("segments")
    return p_eagle.over_text(params, model.config, embedded, g, order, segments)


def guesses(
    params: Any,
    model: Any,
    batch: dict[str, Array],
    teacher: Teacher,
    depth: int,
    taps: Sequence[int] = (),
) -> list:
    """Return, by depth, the outputs of a pass at every token, and the head."""
    config = model.config
    eps, read = decoder_layer.geometry(config).norm_eps, eagle3.taps(config, taps)
    length = batch["tokens"].shape[1]
    every = jnp.arange(length, dtype=jnp.int32)
    order = jnp.broadcast_to(every, batch["tokens"].shape)
    first, more = outputs(params, model, batch, teacher, order, read)

    def draft(a: Array) -> Array:
        found = p_eagle.logits(params, a, eps)
        return eagle3.spread(params, found, config.vocab_size)

    depths = min(depth, p_eagle.config_of(params).depths)
    return [(more[:, :, i - 1] if i else first, draft) for i in range(depths)]
