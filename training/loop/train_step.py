"""One update of a training run: gradients, accumulation, clipping, average."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jax import Array

from models.distributed import sharding
from models.errors import ConfigError
from training.loop import step_health

Batch = dict[str, Any]
COMPUTE_DTYPES = ("", "bfloat16", "float32")  # the first: the params' own


class Objective(NamedTuple):
    """The training side of a paper: its loss, its weight, and its taps.

    Attributes:
        loss: `loss(params, batch, target_out) -> scalar mean, metrics`. `target_out` is
            the frozen target's `outputs.Teacher` on the batch; None without a target.
        weight: `weight(batch)`, the number of elements that the mean is over, so that
            accumulation weighs parts correctly.
        taps: the target's states that the loss reads.
        quantity: `quantity(params)`, in words: whether the loss is a sum or a mean over
            heads, of what, and its unit. "": not stated.
    """

    loss: Callable[[Any, Batch, Any], tuple[Array, dict[str, Array]]]
    weight: Callable[[Batch], Any] = lambda batch: 1.0
    taps: tuple = ()
    quantity: Callable[[Any], str] = lambda params: ""

    def label(self, params: Any) -> str:
        """Name the loss, as in "loss (sum over 4 heads, nats a token)"."""
        words = self.quantity(params)
        return f"loss ({words})" if words else "loss"


@struct.dataclass
class TrainState:
    """The arrays that a step changes."""

    step: Array  # int32[]: steps done
    params: Any
    opt_state: Any
    ema: Any  # the running average of params, or None


def make_step(
    objective: Objective,
    optimizer: optax.GradientTransformation,
    rows_at_once: int = 0,
    clip: float = 0.0,
    ema: float = 0.0,
    target: Callable[[Any, Batch], Any] | None = None,
    policy: step_health.Policy = step_health.Policy(),  # noqa: B008 (immutable)
    compute_dtype: str = "",
) -> Callable[[TrainState, Batch, Any], tuple[TrainState, dict[str, Array]]]:
    """Build one update `(state, batch, frozen) -> state, metrics`, to be jitted.

    With a `compute_dtype` ("bfloat16") losses and gradients are computed with params,
    frozen ones too, rounded to it. Params, gradients, their sums, optimiser and average
    stay as they are: mixed precision (Micikevicius et al., 2018, arXiv 1710.03740,
    section 3.1). bfloat16 needs no scaling of the loss.

    Args:
        objective: the loss, its weight, and its taps.
        optimizer: an optax transformation.
        rows_at_once: rows of a part in gradient accumulation; parts are averaged by
            `objective.weight`. 0: the batch in one part.
        clip: bound of the gradient's global norm; 0: no bound.
        ema: decay of the average of the weights; 0: none.
        target: `target(frozen, batch)`, the frozen model's outputs on a batch. `frozen`
            is an argument of its own, which no optimiser sees.
        policy: with `skip`, a bad step changes nothing but the count of steps.
        compute_dtype: one of `COMPUTE_DTYPES`.

    Raises:
        ConfigError: an unknown dtype, or parts that do not divide a batch.
    """
    if compute_dtype not in COMPUTE_DTYPES:
        raise ConfigError(
            f"compute_dtype={compute_dtype!r}: use one of {COMPUTE_DTYPES}"
        )

    def rounded(params: Any) -> Any:
        def one(x: Array) -> Array:
            real = jnp.issubdtype(x.dtype, jnp.floating)
            return x.astype(compute_dtype) if real else x

        return jax.tree.map(one, params) if compute_dtype else params

    def graded(params: Any, batch: Batch, out: Any) -> tuple[Array, dict[str, Array]]:
        return objective.loss(rounded(params), batch, out)

    def part(
        params: Any, batch: Batch, frozen: Any
    ) -> tuple[Any, dict[str, Array], Array]:
        out = target(frozen, batch) if target else None
        value = jax.value_and_grad(graded, has_aux=True)
        (loss, metrics), grads = value(params, batch, out)
        return grads, {**metrics, "loss": loss}, jnp.float32(objective.weight(batch))

    def whole(params: Any, batch: Batch, frozen: Any) -> tuple[Any, dict[str, Array]]:
        rows = jax.tree.leaves(batch)[0].shape[0]
        at_once = rows_at_once or rows
        if rows % at_once:
            raise ConfigError(
                f"rows_at_once={at_once} does not divide a batch of {rows} rows: use "
                "a divisor, or 0"
            )
        if rows == at_once:
            grads, metrics, _ = part(params, batch, frozen)
            return grads, metrics
        parts = jax.tree.map(lambda x: x.reshape(-1, at_once, *x.shape[1:]), batch)
        parts = jax.tree.map(lambda x: sharding.constrain(x, "- batch"), parts)
        first = jax.tree.map(lambda x: x[0], parts)
        shapes = jax.eval_shape(part, params, first, frozen)

        def zero(x: Any) -> Array:  # sums of bfloat16 gradients are float32
            return jnp.zeros(x.shape, jnp.promote_types(x.dtype, jnp.float32))

        zeros = jax.tree.map(zero, shapes)

        def add(total: tuple, piece: Batch) -> tuple[tuple, None]:
            grads, metrics, weight = part(params, piece, frozen)
            scaled = jax.tree.map(lambda x: x * weight, (grads, metrics))
            return jax.tree.map(jnp.add, total, (*scaled, weight)), None

        (grads, metrics, weight), _ = jax.lax.scan(add, zeros, parts)
        # A fully masked batch has zero weight and zero sums: its means are 0, not NaN.
        weight = jnp.where(weight > 0, weight, 1.0)
        return jax.tree.map(lambda x: x / weight, (grads, metrics))

    def step(
        state: TrainState, batch: Batch, frozen: Any = None
    ) -> tuple[TrainState, dict[str, Array]]:
        grads, metrics = whole(state.params, batch, rounded(frozen))
        norm = optax.tree.norm(grads)
        if clip:
            scale = jnp.minimum(1.0, clip / (norm + 1e-12))
            grads = jax.tree.map(lambda g: g * scale, grads)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        average = state.ema
        if ema:
            average = jax.tree.map(
                lambda a, p: ema * a + (1 - ema) * p, state.ema, params
            )
        metrics = {**metrics, "grad_norm": norm}
        new = TrainState(state.step + 1, params, opt_state, average)
        if policy.action == step_health.SKIP:
            good = policy.good(metrics["loss"], norm)
            chosen = jax.tree.map(lambda a, b: jnp.where(good, a, b), new, state)
            new = replace(chosen, step=new.step)
            metrics["skipped"] = 1.0 - good
        return new, metrics

    return step


def first_state(
    params: Any, optimizer: optax.GradientTransformation, ema: bool, plan: Any = None
) -> TrainState:
    """Make the state before the first step, on the plan's mesh where there is one."""

    def make(params: Any) -> TrainState:
        copies = jax.tree.map(jnp.array, params)
        average = jax.tree.map(jnp.array, params) if ema else None
        return TrainState(jnp.int32(0), copies, optimizer.init(params), average)

    if plan is None:
        return make(params)
    params = sharding.put(params, plan.params(params))
    places = plan.params(jax.eval_shape(make, params))
    return jax.jit(make, out_shardings=places)(params)
