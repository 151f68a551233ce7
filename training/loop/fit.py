"""The training loop: one jitted step, checkpoints, metrics, and exact resume.

A run is a function of its arguments. Killed at any point and started again with the
same ones, it restores the last good checkpoint (weights, optimiser, average, and the
data iterator's state), cuts the metrics back to that step, and goes on to the numbers
that the uninterrupted run would have written. SIGTERM saves first.
"""

import pathlib
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import optax
from absl import logging
from flax import struct
from jax import Array

from models.distributed import sharding
from models.errors import ConfigError, TrainingError
from training.loop import (
    checkpoints,
    metrics_writer,
    preemption,
    step_health,
    throughput,
)

Batch = dict[str, Any]
COMPUTE_DTYPES = ("", "bfloat16", "float32")  # the first: the params' own


class Objective(NamedTuple):
    """What is minimised: the whole of a draft-head paper's training side.

    `loss(params, batch, target_out) -> scalar mean, metrics` is given what the frozen
    target says of the batch (`outputs.Teacher`; None without a target); `weight(batch)`
    is the number of elements that the mean is over, so that accumulation weighs parts
    correctly. `taps` are the target's states that the loss reads.
    """

    loss: Callable[[Any, Batch, Any], tuple[Array, dict[str, Array]]]
    weight: Callable[[Batch], Any] = lambda batch: 1.0
    taps: tuple = ()


class Data(Protocol):
    """An iterator over batches with a small exact state (`data.DataIterator`)."""

    def __next__(self) -> Batch: ...

    def state(self) -> dict[str, Any]: ...

    def restore(self, state: dict[str, Any]) -> None: ...


@struct.dataclass
class TrainState:
    """All that a step changes."""

    step: Array  # int32[]: steps done
    params: Any
    opt_state: Any
    ema: Any  # the running average of params, or None


class Result(NamedTuple):
    """What `fit` returns; `seconds` counts all sittings, each up to its checkpoint."""

    params: Any
    ema: Any
    step: int
    seconds: float


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
    """One update `(state, batch, frozen) -> state, metrics`, to be jitted.

    `target(frozen, batch)` is what the frozen model says of a batch; its params are an
    argument of their own, which no optimiser sees.

    `rows_at_once` accumulates gradients over parts of that many rows (0: the batch in
    one part), averaged by `objective.weight`; `clip` bounds the global norm (0: no
    bound); `ema` is the decay of the average of the weights (0: none). Under a `policy`
    that skips, a bad step changes nothing but the count of steps.

    With a `compute_dtype` ("bfloat16") losses and gradients are computed with params,
    frozen ones too, rounded to it. Params, gradients, their sums, optimiser and average
    stay as they are: mixed precision (Micikevicius et al., 2018, arXiv 1710.03740,
    section 3.1), whose scaling of the loss bfloat16 does without.
    """
    if compute_dtype not in COMPUTE_DTYPES:
        raise ConfigError(f"compute_dtype={compute_dtype!r}: use {COMPUTE_DTYPES}")

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
                f"rows_at_once={at_once} does not divide a batch of {rows} rows"
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
        # Nothing of the batch may be predicted: the sums are zero, and so the means.
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
            kept = jax.tree.map(lambda a, b: jnp.where(good, a, b), new, state)
            new = replace(kept, step=new.step)
            metrics["skipped"] = 1.0 - good
        return new, metrics

    return step


def first_state(
    params: Any, optimizer: optax.GradientTransformation, ema: bool, plan: Any = None
) -> TrainState:
    """The state before the first step, on the plan's mesh where there is one."""

    def make(params: Any) -> TrainState:
        own = jax.tree.map(jnp.array, params)
        average = jax.tree.map(jnp.array, params) if ema else None
        return TrainState(jnp.int32(0), own, optimizer.init(params), average)

    if plan is None:
        return make(params)
    params = sharding.put(params, plan.params(params))
    places = plan.params(jax.eval_shape(make, params))
    return jax.jit(make, out_shardings=places)(params)


def fit(
    params: Any,
    objective: Objective,
    optimizer: optax.GradientTransformation,
    data: Data,
    *,
    steps: int,
    workdir: str | pathlib.Path,
    rows_at_once: int = 0,
    clip: float = 0.0,
    ema: float = 0.0,
    target: Callable[[Any, Batch], Any] | None = None,
    frozen: Any = None,
    plan: sharding.Plan | None = None,
    evaluate: Callable[[Any], dict[str, float]] | None = None,
    evaluate_every: int = 0,
    save_every: int = 100,
    keep: int = 3,
    log_every: int = 10,
    bad_steps: step_health.Policy = step_health.Policy(),  # noqa: B008 (immutable)
    compute_dtype: str = "",
    progress: bool = True,
) -> Result:
    """Train `params` for `steps` updates, resuming whatever `workdir` holds.

    Writes `workdir/checkpoints/<step>` (every `save_every` steps and at the end, `keep`
    of them), `workdir/metrics.jsonl` (one line a step), `workdir/throughput.jsonl`
    (tokens/s, MFU) and TensorBoard events in `workdir/tensorboard`. `evaluate(params)`
    is called every `evaluate_every` steps on the average where there is one. `params`
    is not modified, and not read on resume.
    `target(frozen, batch)` is what a frozen model says of a batch, in the same program.
    With a `plan` everything lies on its mesh, and `data` gives this process's share of
    the rows (`plan.share`); a checkpoint may be of another mesh. `bad_steps` says what
    is done about a loss that is not finite, `compute_dtype` in what losses and
    gradients are computed (`make_step`).

    Raises `ConfigError` for settings that do not fit, `CheckpointError` where `workdir`
    cannot be written or read, `DataError` where the checkpoint is of other data,
    `TrainingError` (naming the last good checkpoint) where `bad_steps` gives up, and
    `Preempted`, with everything saved, after SIGTERM.
    """
    for name, value, least in (
        ("steps", steps, 1),
        ("rows_at_once", rows_at_once, 0),
        ("save_every", save_every, 1),
        ("keep", keep, 1),
        ("log_every", log_every, 1),
    ):
        if value < least:
            raise ConfigError(f"{name}={value}: must be at least {least}")
    bad_steps.check()
    if not 0.0 <= ema < 1.0:
        raise ConfigError(f"ema={ema}: use a decay in [0, 1), 0 for none")
    workdir = pathlib.Path(workdir).absolute()
    state = first_state(params, optimizer, bool(ema), plan)
    places = None if plan is None else jax.tree.map(lambda x: x.sharding, state)
    frozen = sharding.placed(plan, frozen)
    store = checkpoints.Store(workdir, keep)
    found = store.restore(state)
    elapsed, bad = 0.0, 0  # bad steps in a row, or roll-backs since a good checkpoint
    if found is not None:
        state, extra = found
        data.restore(extra["data"])
        elapsed, bad = extra["seconds"], extra.get("bad", 0)
        logging.info("resuming %s at step %d", workdir, int(state.step))
    done = int(state.step)
    writer = metrics_writer.Writer(workdir, done, steps, progress)
    laid: dict[str, Any] = {} if places is None else {"out_shardings": (places, None)}
    rules = (rows_at_once, clip, ema, target, bad_steps, compute_dtype)
    update = jax.jit(make_step(objective, optimizer, *rules), donate_argnums=0, **laid)
    began, first = time.monotonic(), done
    pending: list[tuple[int, dict[str, Array]]] = []

    def settle() -> bool:
        """Fetch the metrics of the steps since last time, check them, write them.

        Whether there was a bad one that cannot be undone step by step.
        """
        nonlocal bad
        failed = False
        for number, metrics in pending:
            row = {name: float(value) for name, value in metrics.items()}
            wrong = bad_steps.bad(row)
            if bad_steps.action != step_health.ROLL_BACK:
                bad = bad + 1 if wrong else 0
            elif wrong and not failed:
                bad += 1
            failed = failed or wrong
            if wrong and (
                bad_steps.action == step_health.STOP or bad > bad_steps.patience
            ):
                store.wait()
                raise TrainingError(
                    f"step {number}: loss {row['loss']}, gradient norm "
                    f"{row['grad_norm']}; the last good checkpoint is "
                    f"{store.latest() or 'none'}: lower the learning rate or set clip"
                )
            if wrong:
                logging.warning(
                    "step %d: loss %s, gradient norm %s: %s, %d of %d",
                    *(number, row["loss"], row["grad_norm"]),
                    *(bad_steps.action, bad, bad_steps.patience),
                )
            writer.add(number, row)
        pending.clear()
        writer.flush()
        return failed and bad_steps.action == step_health.ROLL_BACK

    def rolled_back() -> TrainState:
        """The last good weights and what belongs to them, at the present step."""
        store.wait()
        good = store.restore(state)
        origin = store.latest() or "the first weights"
        logging.warning("step %d goes on from %s", done, origin)
        first = lambda: first_state(params, optimizer, bool(ema), plan)
        kept = first() if good is None else good[0]
        step = jax.device_put(jnp.int32(done), kept.step.sharding)
        return replace(kept, step=step)

    def timed(batch: Batch) -> throughput.Work:
        """What the clock is read for."""
        rows, length = batch["tokens"].shape if "tokens" in batch else (0, 1)
        leaves = jax.tree.leaves(state.params)
        real = (x.dtype for x in leaves if jnp.issubdtype(x.dtype, jnp.floating))
        return throughput.work(
            make_step(objective, optimizer, *rules),
            *(state, batch, frozen),
            tokens=rows * (length - 1),  # that are predicted
            dtype=compute_dtype or next(real),
            devices=1 if plan is None else plan.mesh.devices.size,
        )

    with writer, store, preemption.Notice() as notice:
        while done < steps:
            try:
                batch = next(data)
            except StopIteration:
                raise TrainingError(
                    f"the data ended after {done} of {steps} steps; the last good "
                    f"checkpoint is {store.latest() or 'none'}"
                ) from None
            with sharding.use(plan):
                batch = batch if plan is None else plan.batch(batch)
                if done == first and writer.active:
                    writer.work = timed(batch)
                state, metrics = update(state, batch, frozen)
            done += 1
            if done == first + 1:  # the step was compiled
                jax.block_until_ready(metrics)
                writer.resume(done)
            pending.append((done, metrics))
            last, stop = done == steps, notice.reached(done)
            failed = False
            if done % log_every == 0 or done % save_every == 0 or last or stop:
                failed = settle()
                if failed:
                    state = rolled_back()
            if evaluate and evaluate_every and (done % evaluate_every == 0 or last):
                averaged = state.ema if ema else state.params
                writer.add_evaluation(done, evaluate(averaged))
                writer.resume(done)
            if done % save_every == 0 or last or stop or failed:
                if bad_steps.action == step_health.ROLL_BACK and not failed:
                    bad = 0
                seconds = elapsed + time.monotonic() - began
                extra = {"data": data.state(), "seconds": seconds, "bad": bad}
                store.save(state, extra)
                writer.resume(done)
            if stop and not last:
                store.wait()
                raise preemption.Preempted(
                    f"SIGTERM: saved {store.latest()}; start again to go on"
                )
        store.wait()
    seconds = elapsed + time.monotonic() - began
    return Result(state.params, state.ema, done, seconds)
