"""Training steps and decoding rounds on the clock, by shape alone.

Weights and texts are random. A step is that of `training.loop.fit`. A round is that of
`experiments.measurement.measured_row`, in turns with plain decoding.
"""

import functools
import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import models
from decoding import recipes
from experiments import console
from experiments.measurement import machine, measured_row
from experiments.measurement.measured_row import Cell
from experiments.measurement.workbench import Bench
from experiments.preflight import programs
from experiments.recipes import settings
from experiments.run_folder import RunFolder
from experiments.stage import Stage
from experiments.studies import common
from models import checkpoints, transformer
from models.errors import ConfigError
from models.surgery import lora
from training.loop import throughput, train_step
from training.runs import draft_head_run, scaffold
from training.teacher import outputs


def run(config: Any, store: RunFolder) -> dict[str, Any]:
    """Measure missing pieces, and return all of them."""
    for name in config.targets:
        if name not in config.shapes:
            raise ConfigError(
                f"config.targets has {name!r}; config.shapes has {list(config.shapes)}"
            )
    common.provenance(store)
    steps, rounds = [], {}
    pieces = 1 + 2 * len(config.targets) * len(config.recipes)
    with console.bar(pieces, "read bandwidth") as bar:
        rate = store.make("parts", "bandwidth", machine.bandwidth)["gb_s"]
        bar.done()
        for name in config.targets:
            target = Target(config, name)
            for recipe in config.recipes:
                key = f"{name}-{recipe}"
                bar.doing(f"training {key}")
                work = functools.partial(target.training, recipe)
                steps.append(store.make("steps", key, work))
                bar.done(_said(steps[-1]))
                bar.doing(f"decoding {key}")
                for method in ("plain", recipe):
                    work = functools.partial(target.decoding, recipe, method, rate)
                    row = store.make("rounds", f"{key}-{method}", work)
                    rounds[row["key"]] = row
                bar.done()
    tables = [_table(steps), _rounds(list(rounds.values()))]
    return common.study(store, tables=tables)


class Target:
    """A model of random weights, and heads for it."""

    def __init__(self, config: Any, name: str):
        self.config, self.name = config, name
        data = config.shapes[name].to_dict()
        self.shape = checkpoints.read_config(data, f"config.shapes.{name}")[1]

    @functools.cached_property
    def lm(self) -> models.Loaded:
        """Make the model on first use: a run with all pieces stored needs none."""
        model = transformer.transformer(self.shape, jnp.dtype(self.config.dtype))
        return models.Loaded(model, self._random(model.init))

    def _random(self, init: Any) -> Any:
        """Make params in the config's dtype inside one program, to save memory."""

        def make(key: Any) -> Any:
            return _rounded(init(key), self.config.dtype)

        return jax.jit(make)(jax.random.key(self.config.seed))

    def recipe(self, name: str) -> Any:
        """Load a recipe of configs/heads with the study's batch and window."""
        c = settings.head(name, "llama3_8b")
        c.data.update(batch=self.config.batch, window=self.config.window)
        c.objective.part = self.config.part
        c.draft_vocab = min(c.draft_vocab, self.shape.vocab_size // 2)
        return c

    def heads(self, recipe: str) -> tuple[Any, dict[str, Any]]:
        """Make random float32 params of a recipe's heads, and its draft vocabulary."""
        c = self.recipe(recipe)
        _, vocabulary = programs.head_shapes(c, self.lm)
        kind = draft_head_run.module(c.head)
        make = jax.jit(
            lambda key, params: kind.init(
                key, self.lm.model, params, **c.init.to_dict(), **vocabulary
            )
        )
        return make(jax.random.key(self.config.seed), self.lm.params), vocabulary

    def training(self, recipe: str) -> dict[str, Any]:
        """Time training steps: seconds, tokens/s and MFU, medians after the first."""
        c, recipe_config = self.config, self.recipe(recipe)
        params, vocabulary = self.heads(recipe)
        objective = draft_head_run.module(recipe_config.head).objective(
            self.lm.model, **recipe_config.objective.to_dict(), **vocabulary
        )
        params = {n: x for n, x in params.items() if n != "kept"}
        optimizer = scaffold.optimizer(recipe_config.train, 1000)
        rules = (c.rows_at_once, recipe_config.train.clip, 0.0)
        read = outputs.teacher(self.lm.model, objective.taps)
        step = train_step.make_step(
            *(objective, optimizer, *rules, read), compute_dtype=c.compute_dtype
        )
        state = train_step.first_state(params, optimizer, False)
        tokens = np.random.default_rng(c.seed).integers(
            self.shape.vocab_size, size=(c.batch, c.window + 1)
        )
        batch = {
            "tokens": jnp.asarray(tokens, jnp.int32),
            "row": jnp.arange(c.batch, dtype=jnp.int32),
        }
        args = (state, batch, self.lm.params)
        work = throughput.work(
            *(step, *args),
            tokens=c.batch * c.window,
            dtype=c.compute_dtype or c.dtype,
            devices=1,
        )
        count = sum(x.size for x in jax.tree.leaves(params))
        begun = time.perf_counter()
        update = jax.jit(step, donate_argnums=0).lower(*args).compile()
        compiling = time.perf_counter() - begun
        spent = []
        for _ in range(1 + c.steps):
            begun = time.perf_counter()
            state, metrics = jax.block_until_ready(update(state, *args[1:]))
            spent.append(time.perf_counter() - begun)
        loss = float(metrics["loss"])
        memory: Any = update.memory_analysis()
        memory_bytes = memory.argument_size_in_bytes + memory.temp_size_in_bytes
        return {
            "target": self.name,
            "recipe": recipe,
            "target_parameters": sum(x.size for x in jax.tree.leaves(self.lm.params)),
            "parameters": count,
            "batch": c.batch,
            "window": c.window,
            "loss": loss,
            **work.row(statistics.median(spent[1:])),
            "bytes": memory_bytes,
            "compile_seconds": compiling,
        }

    def decoding(self, recipe: str, name: str, rate: float) -> dict[str, Any]:
        """Measure a row at batch 1, by the recipe's method or (`plain`) plain decoding.

        `rate` is the read bandwidth in GB/s.
        """
        c = self.config
        params = _rounded(self.heads(recipe)[0], c.dtype)
        lm, params = lora.model(self.lm, params)
        sizes = (c.prompt_tokens, c.max_new_tokens, 1)
        bench = Bench(lm, {"heads": params}, *sizes)
        plain = recipes.method("plain")
        method = plain if name == "plain" else programs.method_of(self.recipe(recipe))
        label = f"{name}-{self.name}"
        cell = Cell(label, method, "random", float(c.temperature), c.seed, 1)
        rng = np.random.default_rng(c.seed)
        size = (c.texts, c.prompt_tokens)
        prompts = rng.integers(self.shape.vocab_size, size=size).tolist()
        row: dict[str, Any]
        row = measured_row.row(bench, cell, plain, prompts, c.repeats, rate)["row"]
        return row


def _rounded(params: Any, dtype: str) -> Any:
    """Cast the floating-point leaves of params to `dtype`."""

    def one(x: Any) -> Any:
        return x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x

    return jax.tree.map(one, params)


def _said(step: dict[str, Any]) -> str:
    return (
        f"{step['target']:6} {step['recipe']:10} {step['tokens_per_s']:8.0f} tokens/s, "
        f"MFU {step['mfu']:.2f}"
    )


def _table(steps: list[dict[str, Any]]) -> dict[str, Any]:
    """Make the report's table of training steps."""
    names = ("target", "heads", "parameters", "rows × tokens", "s a step")
    lines = [
        [
            f"{s['target']}, {s['target_parameters'] / 1e6:,.0f} M",
            s["recipe"],
            f"{s['parameters'] / 1e6:,.1f} M",
            f"{s['batch']} × {s['window']}",
            f"{s['seconds_per_step']:.3f}",
            f"{s['tokens_per_s']:,.0f}",
            f"{s['flops_per_s'] / 1e12:.2f}",
            f"{s['mfu']:.2f}",
            f"{s['bytes'] / 2**30:.1f}",
        ]
        for s in steps
    ]
    notes = (
        "Medians of steps after the first, random weights and texts. T operations/s: "
        "of the step's products, without what is made again in the backward pass; MFU: "
        "÷ the device's dense bfloat16 rate (of CPUs: the best that a large product "
        "reached). GiB: arguments and temporaries, by the compiler.",
    )
    heads = (*names, "tokens/s", "T operations/s", "MFU", "GiB")
    return {"title": "Training steps", "heads": heads, "lines": lines, "notes": notes}


def _rounds(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Make the report's table of decoding rounds."""
    lines = [
        [
            row["method"],
            f"{row['nodes']}",
            f"{row['ms_per_round']:.2f}",
            f"{row['mbu']:.2f}",
            f"{100 * row['draft_share']:.0f} %",
            f"{row['tokens_per_call']:.2f}",
        ]
        for row in rows
    ]
    notes = (
        "A round reads the weights of the target and of the heads, and the live keys: "
        "MBU is their bytes ÷ (read bandwidth × time). Heads are random: tokens a call "
        "are no figure of theirs.",
    )
    names = ("method", "nodes", "ms a round", "MBU", "draft share", "tokens/call")
    return {"title": "Decoding rounds", "heads": names, "lines": lines, "notes": notes}


STAGE = Stage(run, "Training and decoding by shape alone", ("targets", "recipes"))
