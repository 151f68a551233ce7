"""The training loop: one jitted step, checkpoints, metrics, and exact resume.

A run is a function of its arguments. Killed at any point and started again with the
same ones, it resumes from the last good checkpoint: weights, optimiser, average, and
the data iterator's state. It cuts the metrics back to that step, and its results equal
an uninterrupted run's. SIGTERM saves first.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import optax
from absl import logging
from jax import Array

from models import storage
from models.distributed import sharding
from models.errors import ConfigError, TrainingError
from training.loop import (
    checkpoints,
    metrics_writer,
    preemption,
    step_health,
    throughput,
    train_step,
)


class Data(Protocol):
    """An iterator over batches with a small exact state (`data.DataIterator`)."""

    def __next__(self) -> train_step.Batch: ...

    def state(self) -> dict[str, Any]: ...

    def restore(self, state: dict[str, Any]) -> None: ...


@dataclass(frozen=True)
class FitConfig:
    """The settings of `fit`.

    Attributes:
        steps: updates in all.
        rows_at_once: rows of a batch whose gradients exist at a time; 0: all.
        clip: bound of the gradient's global norm; 0: none.
        ema: decay of the average of the params, in [0, 1); 0: none.
        evaluate_every: steps between evaluations; 0: none.
        save_every: steps between checkpoints.
        keep: checkpoints that stay.
        log_every: steps whose metrics are fetched at a time.
        bad_steps: the policy for a loss or gradient that is not finite or too large.
        compute_dtype: of losses and gradients, see `train_step.make_step`.
        progress: whether a progress bar is drawn, or lines where there is no terminal.
    """

    steps: int
    rows_at_once: int = 0
    clip: float = 0.0
    ema: float = 0.0
    evaluate_every: int = 0
    save_every: int = 100
    keep: int = 3
    log_every: int = 10
    bad_steps: step_health.Policy = step_health.Policy()  # noqa: RUF009 (immutable)
    compute_dtype: str = ""
    progress: bool = True

    @classmethod
    def from_recipe(cls, train: Any, steps: int) -> "FitConfig":
        """Read a recipe's `train` fields."""
        return cls(
            steps,
            rows_at_once=train.rows_at_once,
            clip=train.clip,
            evaluate_every=train.get("evaluate_every", 0),
            save_every=train.save_every,
            keep=train.keep,
            log_every=train.log_every,
            bad_steps=step_health.from_config(train),
            compute_dtype=train.get("compute_dtype", ""),
        )

    def check(self) -> None:
        """Raise ConfigError for a setting out of its range."""
        least = {"steps": 1, "rows_at_once": 0, "save_every": 1, "keep": 1}
        for name, bound in {**least, "log_every": 1}.items():
            value = getattr(self, name)
            if value < bound:
                raise ConfigError(f"{name}={value}: must be at least {bound}")
        self.bad_steps.check()
        if not 0.0 <= self.ema < 1.0:
            raise ConfigError(f"ema={self.ema}: use a decay in [0, 1), 0 for none")


class Result(NamedTuple):
    """The outcome of `fit`; `seconds` sums all sittings, each up to its checkpoint."""

    params: Any
    ema: Any
    step: int
    seconds: float


def fit(
    params: Any,
    objective: train_step.Objective,
    optimizer: optax.GradientTransformation,
    data: Data,
    workdir: str | os.PathLike,
    config: FitConfig,
    *,
    target: Callable[[Any, train_step.Batch], Any] | None = None,
    frozen: Any = None,
    plan: sharding.Plan | None = None,
    evaluate: Callable[[Any], dict[str, float]] | None = None,
) -> Result:
    """Train `params` for `config.steps` updates, resuming whatever `workdir` holds.

    Writes `workdir/checkpoints/<step>`, `workdir/metrics.jsonl` (one line a step),
    `workdir/throughput.jsonl` (tokens/s, MFU) and TensorBoard events in
    `workdir/tensorboard`. `workdir/loss.txt` names the loss. `params` is not modified,
    and not read on resume.

    Args:
        params: the trained tree.
        objective: its loss.
        optimizer: an optax transformation.
        data: batches, with a state that a checkpoint holds.
        workdir: the folder of the run.
        config: steps, intervals, and the policy for bad steps.
        target: `target(frozen, batch)`, the frozen model's outputs for a batch,
            computed in the same program.
        frozen: params of `target`, which no optimiser sees.
        plan: the mesh of all arrays; `data` gives this process's share of the rows
            (`plan.share`). A checkpoint may come from another mesh.
        evaluate: `evaluate(params)`, called every `evaluate_every` steps on the average
            where there is one.

    Raises:
        ConfigError: a setting is out of its range.
        CheckpointError: `workdir` cannot be written or read.
        DataError: the checkpoint was saved with other data.
        TrainingError: `bad_steps` gives up; names the last good checkpoint.
        Preempted: after SIGTERM, with everything saved.
        KeyboardInterrupt: after Ctrl-C, likewise; at once after a second Ctrl-C.
    """
    config.check()
    steps, ema, bad_steps = config.steps, config.ema, config.bad_steps
    save_every, log_every = config.save_every, config.log_every
    evaluate_every, compute_dtype = config.evaluate_every, config.compute_dtype
    workdir = storage.absolute(storage.path(workdir))
    state = train_step.first_state(params, optimizer, bool(ema), plan)
    sharding.warn_of_whole(plan, state.params)
    places = None if plan is None else jax.tree.map(lambda x: x.sharding, state)
    frozen = sharding.placed(plan, frozen)
    store = checkpoints.Store(workdir, config.keep)
    restored = store.restore(state)
    elapsed, bad = 0.0, 0  # bad steps in a row, or roll-backs since a good checkpoint
    if restored is not None:
        state, extra = restored
        data.restore(extra["data"])
        elapsed, bad = extra["seconds"], extra.get("bad", 0)
        logging.info("resuming %s at step %d", workdir, int(state.step))
    done = int(state.step)
    label = objective.label(state.params)
    writer = metrics_writer.Writer(workdir, done, steps, config.progress, label)
    options: dict[str, Any] = (
        {} if places is None else {"out_shardings": (places, None)}
    )
    rules = (config.rows_at_once, config.clip, ema, target, bad_steps, compute_dtype)
    update = jax.jit(
        train_step.make_step(objective, optimizer, *rules), donate_argnums=0, **options
    )
    began, first = time.monotonic(), done
    pending: list[tuple[int, dict[str, Array]]] = []

    def settle(kept: bool) -> bool:
        """Fetch, check and write the metrics since the last call.

        Returns whether a bad step needs a roll-back.
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
                    f"step {number}: {label} {row['loss']}, gradient norm "
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
        writer.flush(kept)
        return failed and bad_steps.action == step_health.ROLL_BACK

    def rolled_back() -> train_step.TrainState:
        """Return the last good state, with the present count of steps."""
        store.wait()
        good = store.restore(state)
        origin = store.latest() or "the first weights"
        logging.warning("step %d: rolled back to %s", done, origin)
        first = lambda: train_step.first_state(params, optimizer, bool(ema), plan)
        good_state = first() if good is None else good[0]
        step = jax.device_put(jnp.int32(done), good_state.step.sharding)
        return replace(good_state, step=step)

    def timed(batch: train_step.Batch) -> throughput.Work:
        """Count a step's tokens and operations, for the throughput."""
        rows, length = batch["tokens"].shape if "tokens" in batch else (0, 1)
        leaves = jax.tree.leaves(state.params)
        real = (x.dtype for x in leaves if jnp.issubdtype(x.dtype, jnp.floating))
        return throughput.work(
            train_step.make_step(objective, optimizer, *rules),
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
                    f"checkpoint is {store.latest() or 'none'}: use fewer steps or "
                    "more data"
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
            saves = done % save_every == 0 or last or stop
            if done % log_every == 0 or saves:
                failed = settle(saves)
                if failed:
                    state = rolled_back()
            if evaluate and evaluate_every and (done % evaluate_every == 0 or last):
                averaged = state.ema if ema else state.params
                writer.add_evaluation(done, evaluate(averaged))
                writer.resume(done)
            if saves or failed:
                if bad_steps.action == step_health.ROLL_BACK and not failed:
                    bad = 0
                seconds = elapsed + time.monotonic() - began
                extra = {"data": data.state(), "seconds": seconds, "bad": bad}
                store.save(state, extra)
                writer.resume(done)
            if stop:
                store.wait()
                notice.leave(f"saved {store.latest()}")
        store.wait()
    seconds = elapsed + time.monotonic() - began
    return Result(state.params, state.ema, done, seconds)
