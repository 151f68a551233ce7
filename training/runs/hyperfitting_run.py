"""Hyperfitting from a config: a model trained on few samples, and exported.

The samples are of the training split. Held-out text is samples of the same size; the
beginnings of the first of them are the prompts of greedy texts.
"""

import dataclasses
import functools
import os
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import decoding
import models
from decoding import Spec
from decoding.loops import stats
from models import storage
from models.distributed import sharding
from models.errors import ConfigError
from training.data import text_corpus
from training.evaluation import diversity
from training.loop import fit, metrics_writer, optimizers
from training.objectives.language_models import hyperfitting
from training.runs import scaffold

Samples = list[np.ndarray]  # int32[size] each


class Training:
    """A model with the samples of a config."""

    def __init__(self, config: Any, workdir: str | os.PathLike, lm: Any = None):
        self.config, self.workdir = config, storage.path(workdir)
        self.lm = scaffold.target(config, lm)
        c, e = config.data, config.evaluate
        if not 1 <= e.prompt_tokens < c.window or not 1 <= e.prompts <= c.held:
            raise ConfigError(
                f"evaluate.prompts={e.prompts} of {e.prompt_tokens} tokens: use at "
                f"most data.held={c.held} of fewer than data.window={c.window}"
            )
        train, held = scaffold.both_splits(config, self.lm, self.workdir)
        cut = functools.partial(hyperfitting.samples, size=c.window, seed=config.seed)
        self.samples = cut(train.tokens, c.samples)
        self.held = cut(held.tokens, c.held)
        self.plan = sharding.training(self.lm.model.plan, config.rules)
        self._each = jax.jit(functools.partial(hyperfitting.each, self.lm.config))

    @property
    def prompts(self) -> list[list[int]]:
        """Return the beginnings of held-out samples."""
        e = self.config.evaluate
        return [x[: e.prompt_tokens].tolist() for x in self.held[: e.prompts]]

    def first(self) -> Any:
        """Return the params before training, in float32."""
        return jax.tree.map(lambda x: x.astype(jnp.float32), self.lm.params)

    def fit(self) -> fit.Result:
        """Train, or resume."""
        c, t = self.config.data, self.config.train
        end = self.lm.config.eos[0]
        stream = hyperfitting.stream(
            self.samples, c.epochs, c.batch, end, self.config.seed
        )
        # As PyTorch's Adam; the paper has no decay of the weights or of the rate.
        adam = optimizers.adamw(
            optax.constant_schedule(t.rate), b2=0.999, weight_decay=t.weight_decay
        )
        return fit.fit(
            self.first(),
            hyperfitting.objective(self.lm.config),
            adam,
            text_corpus.DataIterator(stream, *sharding.share(self.plan)),
            self.workdir / "training",
            fit.FitConfig.from_recipe(t, stream.steps),
            plan=self.plan,
            evaluate=self.evaluated,
        )

    def graded(self, params: Any, rows: Sequence[np.ndarray]) -> dict[str, list[float]]:
        """Return `nats`, `entropy` and `hits` of every sample, means over tokens."""
        size = self.config.data.batch
        parts = []
        for first in range(0, len(rows), size):
            part = rows[first : first + size]
            full = np.stack([*part, *[part[-1]] * (size - len(part))])
            parts.append([np.asarray(x)[: len(part)] for x in self._each(params, full)])
        values = [np.concatenate(x).astype(float).tolist() for x in zip(*parts)]
        return dict(zip(("nats", "entropy", "hits"), values))

    def evaluated(self, params: Any) -> dict[str, float]:
        """Return held-out figures, and those of greedy texts, means over samples."""
        held = self.graded(params, self.held)
        texts = greedy(self.config, self.loaded(params), self.prompts)
        last = self.config.evaluate.last
        ratios = [diversity.type_token_ratio(text, last) for text in texts]
        loops = [stats.loop_share(text) for text in texts]
        means = {name: float(np.mean(values)) for name, values in held.items()}
        return {**means, "ttr": float(np.mean(ratios)), "loops": float(np.mean(loops))}

    def loaded(self, params: Any) -> models.Loaded:
        """Return the model with other params."""
        return dataclasses.replace(self.lm, params=params, heads=None)


def endless(config: Any) -> Spec:
    """Return the transform under which every text has all its tokens.

    Short texts have higher type-token ratios.
    """
    return Spec("transforms/min_new_tokens", count=config.evaluate.new_tokens)


def greedy(config: Any, lm: Any, prompts: list[list[int]]) -> list[list[int]]:
    """Continue prompts greedily."""
    new = config.evaluate.new_tokens
    out = decoding.generate(
        lm, prompts, transforms=(endless(config),), max_new_tokens=new
    )
    return out.tokens


def run(config: Any, workdir: str | os.PathLike, lm: Any = None) -> dict[str, Any]:
    """Train and export; resumable. Returns the figures.

    `workdir/export` holds the model in HF layout, its weights in float32, and
    `workdir/figures.json` the figures: of every held-out sample `before` and `after`
    with the mean `loss` on the training samples; and the `curve` between them.
    """
    training = Training(config, workdir, lm)
    result = training.fit()
    params = sharding.fetch(result.params)
    figures: dict[str, Any] = {
        "parameters": scaffold.num_params(params),
        **scaffold.effort(config, result),
        "curve": metrics_writer.rows(training.workdir / "training", "evaluations"),
    }
    for name, each in (("before", training.first()), ("after", params)):
        loss = float(np.mean(training.graded(each, training.samples)["nats"]))
        figures[name] = {**training.graded(each, training.held), "loss": loss}
    save = lambda folder: models.save(training.loaded(params), folder)
    scaffold.write_export(config, training.workdir, save)
    scaffold.write_figures(training.workdir, figures)
    return figures
