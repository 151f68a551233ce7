"""Draft models from a config: pre-trained, aligned with a target, measured, saved.

Three parts, each finished or resumed by itself. A new model is trained on text, or one
is loaded. The target generates text. Every variant of the alignment starts from the
same weights, on the same text, under the same schedule.
"""

import functools
import importlib
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from absl import logging

import decoding
import models
from decoding import Method
from models import io, storage, transformer
from models.distributed import processes, sharding
from models.errors import ConfigError
from models.text import hf_tokenizer
from training import distill
from training.data import documents, text_corpus
from training.loop import fit, metrics_writer, train_step
from training.objectives.language_models import draft_model, next_token
from training.runs import scaffold
from training.teacher import outputs, sources


class Written(NamedTuple):
    """Texts that the target generated, by split."""

    train: list[distill.Text]
    held: list[distill.Text]  # for evaluation


def shape(draft: Any, own: transformer.Config) -> transformer.Config:
    """Build a new draft's Config from `config.draft` and the target's Config `own`.

    It shares the target's tokenizer and has as many positions.
    """
    head_dim = draft.d_model // draft.n_heads
    return transformer.Config(
        vocab_size=own.vocab_size,
        d_model=draft.d_model,
        n_layers=draft.n_layers,
        n_heads=draft.n_heads,
        n_kv_heads=draft.n_kv_heads,
        head_dim=head_dim,
        d_ff=draft.d_ff,
        max_positions=own.max_positions,
        ropes=(transformer.rope(head_dim, draft.rope_theta),),
        bos=own.bos,
        eos=own.eos,
    )


class Training:
    """The drafts of one target with the data and variants of a config."""

    def __init__(
        self,
        config: Any,
        workdir: str | os.PathLike,
        lm: Any = None,
        say: sources.Say = logging.info,
    ):
        self.config, self.workdir, self.say = config, storage.path(workdir), say
        self.lm = scaffold.target(config, lm)
        self.plan = sharding.training(self.lm.model.plan, config.rules)
        self.documents = scaffold.both_splits(config, self.lm, self.workdir)
        self.model = transformer.transformer(self._shape())
        self._one = jax.jit(self._metrics())

    def _shape(self) -> transformer.Config:
        """Return the config of the model it starts from, or of `config.draft`."""
        d, target_config = self.config.draft, self.lm.config
        if d.start:
            start = models.load(d.start)
            start_config, name = start.config, f"config.draft.start={d.start!r}"
            if start_config.vocab_size != target_config.vocab_size:
                raise ConfigError(
                    f"{name} has a vocabulary of {start_config.vocab_size}, the target "
                    f"one of {target_config.vocab_size}: start from a model with the "
                    "target's tokenizer"
                )
            hf_tokenizer.check_same(name, start.tokenizer, self.lm.tokenizer)
            return start_config
        return shape(d, target_config)

    def _fit(
        self,
        name: str,
        params: Any,
        objective: train_step.Objective,
        train,
        tokens,
        **more,
    ):
        """Run one training, with the config's schedule over its own steps.

        With a `frozen` target it trains against that target's outputs. All variants
        read the same cache, where the config has one.
        """
        t = self.config.train
        stream = scaffold.stream(self.config, self.lm, train, tokens)
        rows = text_corpus.DataIterator(stream, *sharding.share(self.plan))
        batches: fit.Data = rows
        if "frozen" in more:
            request = (
                self.config,
                self.lm,
                rows,
                objective.taps,
                self.workdir,
                self.plan,
            )
            kind = self.config.get("teacher", sources.ONLINE)
            lesson = sources.lesson(*request, self.say)
            batches, more["target"] = sources.source(kind, lesson)
        peak = t.rate if "frozen" in more else t.pretraining_rate
        return fit.fit(
            params,
            objective,
            scaffold.optimizer(t, stream.steps, peak),
            batches,
            self.workdir / name,
            fit.FitConfig.from_recipe(t, stream.steps),
            plan=self.plan,
            **more,
        )

    def start(self) -> Any:
        """Return the params before any training: loaded, or random."""
        if self.config.draft.start:
            return models.load(self.config.draft.start, dtype=jnp.float32).params
        return jax.jit(self.model.init)(jax.random.key(self.config.seed))

    def pretrained(self, name: str = "pretraining") -> Any:
        """Return params before the alignment: loaded, or trained on text (FastDraft).

        The training's files are in the folder `name`.
        """
        params, tokens = self.start(), self.config.data.pretraining_tokens
        if not tokens:
            return params
        objective = next_token.objective(self.model.config)
        return self._fit(name, params, objective, self.documents[0], tokens).params

    def aligned(self, name: str, start: Any, written: Written) -> Any:
        """Train one variant from `start`, and return the result."""
        objective = objective_of(self.config, name, self.model)
        train = documents.of_texts(written.train)
        options = {
            "frozen": self.lm.params,
            "evaluate": lambda params: self.measured(params, written.held, name),
        }
        tokens = self.config.data.tokens
        return self._fit(name, start, objective, train, tokens, **options)

    def _metrics(self) -> Any:
        """Build `(params, frozen, batch) -> metrics` of a draft against its target."""
        objective = draft_model.objective(self.model, "kl")
        read = outputs.teacher(self.lm.model)

        def metrics(params: Any, frozen: Any, batch: Any) -> Any:
            values = objective.loss(params, batch, read(frozen, batch))[1]
            return {**values, "n": objective.weight(batch)}

        return metrics

    def prompts(self) -> list[list[int]]:
        """Return the beginnings of held-out documents, for the decode loop."""
        return scaffold.held_out_prompts(self.config, self.lm, self.documents[1])

    def measured(
        self, params: Any, held: list[distill.Text], name: str = ""
    ) -> dict[str, float]:
        """Measure nats and acceptance on the target's held-out text, and the tau.

        Both are measured, because perplexity and acceptance need not agree. `tau` is
        that of the decode loop, with the drafter of the variant `name`.
        """
        c = self.config.evaluate
        sums: dict[str, float] = {}
        for batch in documents.padded(held):
            one = self._one(params, self.lm.params, batch)
            values = {k: float(v) for k, v in one.items()}
            for k, v in values.items():
                weighted = v if k == "n" else v * values["n"]
                sums[k] = sums.get(k, 0.0) + weighted
        count = sums.pop("n")
        out = decoding.generate(
            self.lm,
            self.prompts(),
            method(self.config, name),
            max_new_tokens=c.new_tokens,
            temperature=c.temperature,
            drafts={"draft": self.loaded(params)},
            width="paper",
        )
        tau = float(sum(out.stats.new_tokens) / sum(out.stats.target_calls))
        return {**{k: v / count for k, v in sums.items()}, "tau": tau}

    def loaded(self, params: Any) -> models.Loaded:
        """Wrap params as a loaded draft, placed like the target."""
        draft = models.Loaded(self.model, params, self.lm.tokenizer)
        return io.placed(draft, self.lm.model.plan)


def write(
    lm: Any,
    given: Sequence[documents.Documents],
    c: Any,
    folder: storage.Path,
    seed: int,
) -> Written:
    """Generate the target's text after requests of both splits; resumable.

    Args:
        lm: the target.
        given: the documents of both splits.
        c: `prompts`, `held`, `prompt_tokens`, `new_tokens`, `temperatures`, `batch`.
            The prompts are divided among the temperatures.
        folder: where the texts are kept.
        seed: of the requests and of the texts.
    """
    sizes = (c.prompt_tokens, c.new_tokens)
    requests = [  # for both before the target runs: either split may have none
        documents.requests(lm, split, count, *sizes, seed)
        for split, count in zip(given, (c.prompts, c.held))
    ]
    both = []
    for split, (count, passages) in enumerate(zip((c.prompts, c.held), requests)):
        texts: list[distill.Text] = []
        share = -(-count // len(c.temperatures))
        for i, temperature in enumerate(c.temperatures):
            rows = passages[i * share : (i + 1) * share]
            if not rows:
                continue
            path = folder / f"{split}-{i}.jsonl"
            settings = distill.Settings(c.new_tokens, float(temperature), seed + i)
            distill.distill(lm, rows, path, settings, c.batch)
            texts += distill.read(path)
        both.append(texts)
    return Written(*both)


def method(config: Any, name: str = "") -> Method:
    """Build the method: chains of a draft's tokens.

    `config.drafters` may have another drafter for the variant `name` than
    `config.drafter`.
    """
    drafter = config.get("drafters", {}).get(name, config.drafter)
    chain = {"name": "topologies/chain", "length": config.evaluate.length}
    return Method.from_config({"drafter": drafter.to_dict(), "topology": chain})


def objective_of(config: Any, name: str, model: Any) -> train_step.Objective:
    """Build the objective of a variant.

    Its fields are arguments of `draft_model`, or of another module of
    `training/objectives/language_models` that its `objective` names.
    """
    fields = config.variants[name].to_dict()
    module = fields.pop("objective", "draft_model")
    package = draft_model.__package__
    try:
        found = importlib.import_module(f"{package}.{module}")
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"config.variants.{name}.objective={module!r}: no such file in "
            "training/objectives/language_models"
        ) from error
    return found.objective(model, part=config.train.part, **fields)


def run(
    config: Any,
    workdir: str | os.PathLike,
    lm: Any = None,
    say: sources.Say = logging.info,
) -> dict[str, Any]:
    """Train, measure and save every variant; resumable.

    `workdir/<variant>/export` is a model directory for `models.load`.
    `workdir/figures.json` holds the figures, also those before any alignment.

    Args:
        config: the recipe.
        workdir: the folder of the run.
        lm: the loaded target; None loads `config.model`.
        say: called with the size of a cache.

    Returns:
        The figures.
    """
    training = Training(config, workdir, lm, say)
    training.prompts()  # raises before any training where there are too few
    start = training.pretrained()
    written = write(
        training.lm,
        training.documents,
        config.distill,
        training.workdir / "written",
        config.seed,
    )
    figures: dict[str, Any] = {
        "parameters": scaffold.num_params(start),
        "target_parameters": scaffold.num_params(training.lm.params),
        "written_tokens": int(sum(text.mask.sum() for text in written.train)),
        "pretraining_tokens": config.data.pretraining_tokens,
        "before": training.measured(start, written.held),
        "variants": {},
    }
    for name in config.variants:
        result = training.aligned(name, start, written)
        folder = training.workdir / name
        weights = sharding.fetch(result.params)
        draft = models.Loaded(training.model, weights, training.lm.tokenizer)
        export = functools.partial(models.save, draft, folder / "export")
        processes.written(export)
        figures["variants"][name] = {
            **scaffold.effort(config, result),
            "after": training.measured(result.params, written.held, name),
            **metrics_writer.figures(folder),
        }
        logging.info("%s: %s", name, figures["variants"][name]["after"])
    scaffold.write_figures(training.workdir, figures)
    return figures
