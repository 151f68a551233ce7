"""PARD: adapt a draft model to guess several tokens in one pass, behind masks.

An et al., *PARD*, 2025, arXiv 2504.18583, sections 3.2 and 3.3. Behind token t of a
text stand masks at t + 1 .. t + K - 1, which see the text up to t and the masks before
them. With q_0 the draft's law at token t, q_j that of the mask at t + j, and P_j the
tokens behind which there are at least j masks,

    L = - sum_j sum_{t in P_j} log q_j(x_{t+1+j}) / sum_j |P_j|,    j = 0 .. K - 1

P_0 are all tokens. P_j is a drawn share max(keep^j, least) of them within P_{j-1}: the
conditional drop of tokens, which cuts K texts to about 1 + 2.4 of them at K = 8. The
published training: K = 8, keep 0.7, least 0.2, AdamW at 3e-5, text of the targets.

With K = 1 it is the draft's next-token loss.

Metrics: `nats`, -log q_0 of the text; `hit_j`, how often q_j's likeliest token is the
text's, where it is graded; with a target `alpha_j`, how often a draft would be
accepted.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from models.errors import ConfigError
from models.transformer import sequence_forward
from training import draft_metrics
from training.loop.train_step import Objective
from training.objectives import drawn_places
from training.teacher.outputs import NORM, Teacher, ahead, predicted


class Masks(NamedTuple):
    """The masks of a text, by depth: constants of the program."""

    place: np.ndarray  # int[E], index in the drawn order of the token it stands behind
    depth: np.ndarray  # int[E], from 1

    def of(self, depth: int) -> slice:
        """Return where the masks of one depth are."""
        index = np.flatnonzero(self.depth == depth)
        return slice(int(index[0]), int(index[-1]) + 1)


def objective(
    model: Any,
    mask: int,
    depths: int = 8,
    keep: float = 0.7,
    least: float = 0.2,
    seed: int = 0,
    part: int = 0,
    remat: bool = False,
) -> Objective:
    """Build the loss.

    Args:
        model: the draft.
        mask: the id of the token that stands for an unknown one.
        depths: K, tokens that a pass guesses.
        keep: share of a depth's places that the next one keeps.
        least: share of all places that every depth keeps.
        seed: of the places.
        part: positions whose logits exist at a time; 0: all.
        remat: recompute the draft's layers in the backward pass.

    Raises:
        ConfigError: no such token, no depth, or shares outside of (0, 1].
    """
    config = model.config
    if not 0 <= mask < config.vocab_size:
        raise ConfigError(
            f"mask={mask} is no token of a draft with {config.vocab_size}: give the id "
            "of one that its texts do not hold"
        )
    if depths < 1:
        raise ConfigError(f"depths={depths}: a pass guesses one token or more")
    if not 0 < keep <= 1 or not 0 < least <= 1:
        raise ConfigError(f"keep={keep}, least={least}: use shares above 0, at most 1")

    def total(params: Any, batch: dict[str, Array], teacher: Any) -> tuple:
        length = batch["tokens"].shape[1]
        masks = kept(length, depths, keep, least)
        count = int(masks.place.max()) + 1 if len(masks.place) else 0
        able = predicted(batch, 2)  # where a mask may be learned
        order = drawn_places.drawn(able, batch, count, seed)
        first, more = states(params, model, batch, mask, masks, order, remat)
        each = []
        for j in range(depths):
            weights, labels = predicted(batch, 1 + j), ahead(batch["tokens"], 1 + j)
            law = None if teacher is None else ahead(teacher.law, j)
            found = first
            if j:
                found = more[:, masks.of(j)]
                some = order[:, : found.shape[1]]
                weights = jnp.take_along_axis(weights, some, 1)
                labels = jnp.take_along_axis(labels, some, 1)
                if law is not None:
                    law = jax.vmap(lambda row, at: row[at])(law, some)
            each.append(
                _sums(params, model, teacher, found, labels, weights, law, part)
            )
        places = jnp.maximum(sum(s["weight"] for s in each), 1.0)
        value = sum(s["loss"] for s in each) / places
        metrics = {"nats": draft_metrics.mean(each[0], "loss")}
        for name in ("hit", "alpha") if teacher is not None else ("hit",):
            for j, s in enumerate(each):
                metrics[f"{name}_{j}"] = draft_metrics.mean(s, name)
        return value, lax.stop_gradient(metrics)

    def quantity(params: Any) -> str:
        return f"nats a token, mean over the places of {depths} depths"

    return Objective(total, lambda batch: predicted(batch, 1).sum(), quantity=quantity)


def kept(length: int, depths: int, keep: float, least: float) -> Masks:
    """Return the masks of a text of `length` tokens; each depth's are nested."""
    counts = [max(round(max(keep**j, least) * length), 1) for j in range(1, depths)]
    place = [np.arange(count) for count in counts]
    depth = [np.full(count, j) for j, count in enumerate(counts, 1)]
    none = [np.zeros(0, int)]
    return Masks(np.concatenate(place or none), np.concatenate(depth or none))


def states(
    params: Any,
    model: Any,
    batch: dict[str, Array],
    mask: int,
    masks: Masks,
    order: Array,
    remat: bool = False,
) -> tuple[Array, Array]:
    """Compute the normed states of a text [B, T, D], and of its masks [B, E, D]."""
    config, tokens = model.config, batch["tokens"]
    segments = batch.get("segments")
    taps = (*range(config.n_layers), NORM)
    text = sequence_forward.forward(
        config, params, tokens, segments, taps=taps, remat=remat
    ).hidden
    if not len(masks.place):
        return text[NORM], text[NORM][:, :0]
    texts = sequence_forward.places(tokens.shape, segments)
    behind = order[:, masks.place]
    positions = jnp.take_along_axis(texts, behind, 1) + masks.depth
    seen = jnp.arange(tokens.shape[1]) <= behind[..., None]
    if segments is not None:
        own = jnp.take_along_axis(segments, behind, 1)
        seen = seen & (segments[:, None] == own[..., None])
    chain = masks.place[:, None] == masks.place
    within = jnp.asarray(chain & (masks.depth[:, None] >= masks.depth))
    within = jnp.broadcast_to(within, (len(tokens), *within.shape))
    x = model.embed(params, jnp.full_like(positions, mask), positions)
    seen = jnp.concatenate([seen, within], 2)
    return text[NORM], sequence_forward.beside(
        config, params, text, texts, x, positions, seen, remat=remat
    )


def guesses(
    params: Any,
    model: Any,
    batch: dict[str, Array],
    teacher: Teacher | None,
    depth: int,
    mask: int = 0,
) -> Sequence[tuple]:
    """Return, by depth, the states of a pass at every token, and the draft's head."""
    length = batch["tokens"].shape[1]
    masks = kept(length, depth, 1.0, 1.0)
    every = jnp.arange(length, dtype=jnp.int32)
    order = jnp.broadcast_to(every, batch["tokens"].shape)
    first, more = states(params, model, batch, mask, masks, order)
    head = lambda x: model.head(params, x)
    return [(more[:, masks.of(i)] if i else first, head) for i in range(depth)]


def _sums(params, model, teacher, found, labels, weights, law, part) -> Any:
    """Sum one depth's losses and metrics."""
    head = lambda x: model.head(params, x)
    sums: Any = draft_metrics.against_labels(head, found, labels, weights, part)
    if teacher is None:
        return sums
    states = lax.stop_gradient(found)
    none = lambda p, q: jnp.zeros(p.shape[:-1])
    graded = draft_metrics.against_teacher(
        teacher, head, states, law, weights, none, part
    )
    return {**sums, "alpha": graded["alpha"]}
