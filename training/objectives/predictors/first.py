"""FiRST: train routers that leave layers out, then the target under them.

Jain, Sharma, Mukherjee, Pal, *FiRST: Finetuning Router-Selective Transformers for
Input-Adaptive Latency Reduction*, 2025, arXiv 2410.12513. With f_l the change that
layer l makes to its input h and g_l its router (models/predictors/layer_router.py),

    stage 1   h <- h + g_l(h) f_l(h),    L = CE + lambda mean over t, l of g_l

trains the routers, the target frozen; CE is that of the next token and lambda is
`sparsity`. Stage 2 trains low-rank changes of the target (models/surgery/lora.py), the
routers frozen, on L = CE.

Deviations from the paper: stage 2 trains on what decoding (decoding/exits/first.py)
runs. The first `prompt` tokens of a row take all layers, and all but the last of them
vote; the loss is of the tokens behind them, which take the layers that were chosen. The
votes have no gradient.

Metrics: `ce`; `layers`, the mean over places of sum_l g_l, or of the layers that ran.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from models import transformer
from models.errors import ConfigError
from models.predictors import layer_router
from models.surgery import lora
from training import draft_metrics
from training.loop.train_step import Objective
from training.teacher.outputs import NORM, ahead, mean, predicted

Share = Callable[[int, Array], Array]  # of `transformer.forward`


def given(frozen: Any, batch: dict[str, Array]) -> Any:
    """Return the frozen params: `fit`'s `target` of both stages.

    They are {"target": params} and in stage 2 {"target": params, "routers": params}.
    """
    return lax.stop_gradient(frozen)


def soft(routers: Any, gates: list[Array]) -> Share:
    """Build stage 1's gates g_l; each float32[B, T] is put into `gates`."""

    def share(i: int, x: Array) -> Array:
        gates.append(jax.nn.sigmoid(layer_router.log_odds(routers, i, x)))
        return gates[-1]

    return share


def chosen(
    routers: Any, prompt: int, gates: list[Array], threshold: float = 0.5
) -> Share:
    """Build decoding's gates, 0 or 1; each float32[B, T] is put into `gates`.

    Args:
        routers: params.
        prompt: tokens of a row that take all layers; all but the last one vote.
        gates: the list to extend.
        threshold: mean vote from which on a layer is kept.
    """

    def share(i: int, x: Array) -> Array:
        votes = jax.nn.sigmoid(layer_router.log_odds(routers, i, x[:, : prompt - 1]))
        keeps = votes.mean(1, keepdims=True) >= threshold
        runs = keeps | (jnp.arange(x.shape[1]) < prompt)
        gates.append(lax.stop_gradient(runs.astype(jnp.float32)))
        return gates[-1]

    return share


def objective(
    model: Any, sparsity: float = 0.1, part: int = 0, remat: bool = False
) -> Objective:
    """Build stage 1's loss; the params are those of `layer_router`.

    Args:
        model: the target's.
        sparsity: lambda, the price of a layer's share.
        part: places whose logits exist at a time; 0: all.
        remat: recompute the target's layers in the backward pass.
    """
    if sparsity < 0:
        raise ConfigError(f"sparsity={sparsity}: use a price of 0 or more")

    def loss(routers: Any, batch: dict[str, Array], frozen: Any) -> tuple:
        gates: list[Array] = []
        weights = predicted(batch, 1)
        target, share = frozen["target"], soft(routers, gates)
        ce = cross_entropy(model, target, None, batch, weights, share, part, remat)
        each = mean(jnp.stack(gates).mean(0), weights)
        metrics = {"ce": ce, "layers": len(gates) * each}
        return ce + sparsity * each, metrics

    def quantity(params: Any) -> str:
        return f"nats a token + {sparsity:g} x the layers' mean share"

    return Objective(loss, lambda batch: predicted(batch, 1).sum(), quantity=quantity)


def adapted(
    model: Any,
    prompt: int,
    threshold: float = 0.5,
    part: int = 0,
    remat: bool = False,
) -> Objective:
    """Build stage 2's loss; the params are those of `models.surgery.lora`.

    Args:
        model: the target's.
        prompt: tokens of a row that choose the layers and have no loss.
        threshold: as of `chosen`.
        part: places whose logits exist at a time; 0: all.
        remat: recompute the target's layers in the backward pass.
    """
    if prompt < 2:
        raise ConfigError(f"prompt={prompt}: use 2 or more; the last one has no vote")

    def weight(batch: dict[str, Array]) -> Array:
        return predicted(batch, 1) * (jnp.arange(batch["tokens"].shape[1]) >= prompt)

    def loss(changes: Any, batch: dict[str, Array], frozen: Any) -> tuple:
        gates: list[Array] = []
        weights, target = weight(batch), frozen["target"]
        share = chosen(frozen["routers"], prompt, gates, threshold)
        ce = cross_entropy(model, target, changes, batch, weights, share, part, remat)
        return ce, {"ce": ce, "layers": mean(jnp.stack(gates).sum(0), weights)}

    def quantity(params: Any) -> str:
        return "nats a token"

    return Objective(loss, lambda batch: weight(batch).sum(), quantity=quantity)


def cross_entropy(
    model: Any,
    target: Any,
    changes: Any,
    batch: dict[str, Array],
    weights: Array,
    share: Share | None,
    part: int = 0,
    remat: bool = False,
) -> Array:
    """Compute the mean nats of the next token at places of `weights` float32[B, T].

    Args:
        model: the target's.
        target: its params.
        changes: low-rank changes without that of the head, or None.
        batch: tokens, and segments if there are any.
        weights: of the places.
        share: as of `transformer.forward`.
        part: places whose logits exist at a time; 0: all.
        remat: recompute the target's layers in the backward pass.
    """
    changed = target if changes is None else lora.beside(target, changes)
    tokens, segments = batch["tokens"], batch.get("segments")
    states = transformer.forward(
        model.config, changed, tokens, segments, taps=(NORM,), remat=remat, share=share
    ).hidden[NORM]
    head = lambda states: model.head(target, states)
    labels = ahead(tokens, 1)
    sums = draft_metrics.against_labels(head, states, labels, weights, part)
    return draft_metrics.mean(sums, "loss")
