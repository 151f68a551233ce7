"""Train a small language model on the target's distribution, its text, or both.

Goel et al., *Direct Alignment of Draft Model for Speculative Decoding with
Chat-Fine-Tuned LLMs*, 2024, arXiv 2403.00858 (`loss="tvdpp"`, against "kl" and "tv");
Zafrir et al., *FastDraft: How to Train Your Draft*, 2024, arXiv 2411.11055 (`label=1`,
`soft=0` on text that the target generated). With p the target's distribution of the
next token, q the draft's, x the text:

    L = mean over exits mean_t [ label (-log q(x_{t+1})) + soft loss(p_{t+1}, q_{t+1}) ]

`exits` are depths of the draft at which the same head is trained too. This is sorted
fine-tuning (Kavehzadeh et al., *S2D: Sorted Speculative Decoding*, 2024, arXiv
2407.01955): the draft is then several nested models. Without exits there is one term.

Deviations from the papers: `tvdpp` takes its mean and deviation over the counted
positions of one loss call, `part` of them (0: of all of `rows_at_once`); which axis its
authors mean is not known. S2D is a reconstruction: equal weights.

Metrics: `nats`, -log q of the text; `alpha_0`, how often a draft would be accepted, and
`hit_0`, how often its first guess is the target's likeliest token (without a target:
the text's), of the whole model; `alpha_<n>` at an exit after n layers.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from decoding import vocab
from models import transformer
from models.errors import ConfigError
from training import losses
from training.loop.train_step import Objective
from training.teacher.outputs import NORM, Teacher, ahead, in_parts, predicted

Graded = Callable[[Array, Array, Array], Array]


def objective(
    model: Any,
    loss: str = "tvdpp",
    label: float = 0.0,
    soft: float = 1.0,
    exits: tuple[int, ...] = (),
    axis: str = "batch",
    part: int = 0,
    remat: bool = False,
) -> Objective:
    """Build the weighted losses.

    Args:
        model: the draft.
        loss: a name of `losses.LOSSES`.
        label: weight of the text's cross-entropy.
        soft: weight of `loss`; with 0 no target is needed.
        exits: depths in rising order, below the draft's own.
        axis: `losses.tvdpp`'s.
        part: positions whose logits exist at a time; 0: all.
        remat: recompute the draft's layers in the backward pass.

    Raises:
        ConfigError: weights, exits, loss or axis out of range, or no target for `soft`.
    """
    if min(label, soft) < 0 or label + soft <= 0:
        raise ConfigError(
            f"label={label}, soft={soft}: none may be negative, one must be positive"
        )
    inner = range(1, model.config.n_layers)
    wrong = [e for e in exits if e not in inner]
    if wrong or list(exits) != sorted(set(exits)):
        raise ConfigError(
            f"exits={exits}: use layers from 1 to {inner.stop - 1} in rising order; "
            "the whole model is trained without an entry"
        )
    graded = _graded(loss, axis)

    def total(params: Any, batch: dict[str, Array], teacher: Any) -> tuple:
        if soft and teacher is None:
            raise ConfigError(
                f"soft={soft} needs a target: pass target=, or use soft=0"
            )
        states = depths(params, model, batch, exits, remat)
        sums: Any = [_sums(params, batch, teacher, x) for x in states.values()]
        each = [{n: s[n] / _least(s["weight"]) for n in s} for s in sums]
        value = sum(label * s["nats"] + soft * s["soft"] for s in each) / len(each)
        last = each[-1]
        metrics = {"nats": last["nats"], "hit_0": last["hit"]}
        if teacher is not None:
            metrics["alpha_0"] = last["alpha"]
            for depth, s in zip(exits, each):
                metrics[f"alpha_{depth}"] = s["alpha"]
        return value, metrics

    def _sums(params, batch, teacher, states):
        labels, weights = ahead(batch["tokens"], 1), predicted(batch, 1)
        if teacher is None:
            return in_parts(
                lambda *x: _against_text(model.head(params, x[0]), *x[1:]),
                part,
                states,
                labels,
                weights,
            )
        return in_parts(
            lambda *x: _against_both(
                teacher, x[3], model.head(params, x[0]), x[1], x[2], graded
            ),
            part,
            states,
            labels,
            weights,
            teacher.law,
        )

    def quantity(params: Any) -> str:
        terms = [(label, "nats"), (soft, loss)]
        each = " + ".join(f"{x:g} x {name}" for x, name in terms if x)
        depths = f"mean over {len(exits) + 1} depths, " if exits else ""
        return f"{depths}{each}, a token"

    return Objective(total, lambda batch: predicted(batch, 1).sum(), quantity=quantity)


def depths(
    params: Any,
    model: Any,
    batch: dict[str, Array],
    exits: tuple[int, ...] = (),
    remat: bool = False,
) -> dict[int, Array]:
    """Compute the normed states [B, T, D] after each exit and all layers, by depth."""
    out = transformer.forward(
        model.config,
        params,
        batch["tokens"],
        batch.get("segments"),
        taps=(*exits, NORM),
        remat=remat,
    )
    states = {e: model.norm(params, out.hidden[e]) for e in exits}
    return {**states, model.config.n_layers: out.hidden[NORM]}


def guesses(
    params: Any, model: Any, batch: dict[str, Array], teacher: Teacher, depth: int
) -> list:
    """Return, by depth, the draft's states along the text's tokens, and its head.

    The guess of token t + 2 + i, given the tokens before it, comes from the draft's
    state i + 1 tokens after t.
    """
    states = depths(params, model, batch)[model.config.n_layers]
    head = lambda x: model.head(params, x)
    return [(ahead(states, 1 + i), head) for i in range(depth)]


def _graded(name: str, axis: str) -> Graded:
    """Return the config's loss as a function of (p, q, weights)."""
    if name == "tvdpp":
        if axis not in losses.AXES:
            raise ConfigError(f"axis={axis!r}: use one of {losses.AXES}")
        return functools.partial(losses.tvdpp, axis=axis)
    function = losses.by_name(name)
    return lambda p, q, weights: function(p, q)


def _least(weight: Array) -> Array:
    return jnp.maximum(weight, 1.0)


def _against_text(q: Array, labels: Array, weights: Array) -> dict[str, Array]:
    nats = losses.ce(q, labels)
    return {
        "nats": (weights * nats).sum(),
        "soft": 0.0 * weights.sum(),
        "hit": (weights * (vocab.argmax(q) == labels)).sum(),
        "weight": weights.sum(),
    }


def _against_both(
    teacher: Teacher,
    law: Array,
    draft: Array,
    labels: Array,
    weights: Array,
    graded: Graded,
) -> dict[str, Array]:
    p, q, same, *_ = teacher.compared(law, draft)
    return {
        "nats": (weights * losses.ce(draft, labels)).sum(),
        "soft": (weights * graded(p, q, weights)).sum(),
        "hit": (weights * same).sum(),
        "alpha": (weights * lax.stop_gradient(losses.alpha(p, q))).sum(),
        "weight": weights.sum(),
    }
