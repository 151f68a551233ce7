"""Draft heads of a target, from a config: trained, measured and exported."""

import dataclasses
import functools
import importlib
import inspect
import json
import os
import pkgutil
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from jax import Array

import decoding
from decoding import Method
from decoding.tree_design import greedy_search
from models import storage
from models.distributed import processes, sharding
from models.errors import ConfigError
from models.heads.formats import native
from models.heads.modules import head_config
from models.surgery import lora
from training import draft_metrics
from training.data import documents, text_corpus
from training.evaluation import sequential_temperatures
from training.loop import fit, metrics_writer
from training.objectives import heads
from training.runs import model_cards, scaffold
from training.teacher import outputs, sources

TOPS = (1, 2, 4, 8)  # guesses at a depth, one of which must be right to count


def names() -> list[str]:
    """List every head that has an objective, by the name of its file."""
    return sorted(info.name for info in pkgutil.iter_modules(heads.__path__))


def module(name: str) -> Any:
    """Import an objective's module: `init`, `objective`, `guesses`, and hooks.

    Hooks are functions that only some objectives have. `draft_vocabulary(tokens,
    vocab_size, count)` returns the head's draft vocabulary, as keyword arguments of
    `init` and `objective`. `tree(method, hits, budget)` builds a tree of the head's
    kind. `confidences(params, model, batch, teacher)` rates chains on held-out text.
    """
    if name not in names():
        raise ConfigError(f"config.head={name!r}: use one of {names()}")
    return importlib.import_module(f"training.objectives.heads.{name}")


def hook(config: Any, name: str, field: str) -> Any:
    """Return the objective's hook `name`, which the config's `field` requires."""
    function = vars(module(config.head)).get(name)
    if function is None:
        raise ConfigError(
            f"config.{field}={config[field]}: the head {config.head!r} has no "
            f"{name}(); set it to 0"
        )
    return function


def agreed(config: Any) -> dict[str, Any]:
    """Return the objective's fields that guesses and drafter must share."""
    names = inspect.signature(module(config.head).guesses).parameters
    return {n: x for n, x in config.objective.to_dict().items() if n in names}


def untrained(config: Any) -> Method:
    """Return the config's method, with a tree that does not depend on measured hits."""
    base = Method.from_config(config.method.to_dict())
    return base.with_drafter(**agreed(config))


def others(config: Any) -> dict[str, Method]:
    """Return the config's method with each of `beside` in place of its own parts."""
    whole = config.method.to_dict()
    return {
        name: Method.from_config({**whole, **parts}).with_drafter(**agreed(config))
        for name, parts in config.beside.to_dict().items()
    }


def method(config: Any, hits: Sequence[Sequence[float]]) -> Method:
    """Return the config's method, its tree built from measured hits if configured."""
    base = untrained(config)
    if config.tree_budget:
        return hook(config, "tree", "tree_budget")(base, hits, config.tree_budget)
    if not config.tree_nodes:
        return base
    choices, _ = greedy_search.by_accuracy(hits, config.tree_nodes - 1)
    topology = decoding.Spec("topologies/static", choices=choices)
    return dataclasses.replace(base, topology=topology)


class Training:
    """One head on one target with the data and objective of a config."""

    def __init__(self, config: Any, workdir: str | os.PathLike, lm: Any = None):
        self.config, self.workdir = config, storage.path(workdir)
        self.kind = module(config.head)
        self._measures: dict[float, Any] = {}
        self.lm = scaffold.target(config, lm)
        self.plan = sharding.training(self.lm.model.plan, config.get("rules", ""))
        train, self.held = scaffold.both_splits(config, self.lm, self.workdir)
        self.stream = scaffold.stream(config, self.lm, train, config.data.tokens)
        fields: dict[str, Any] = {}
        if config.draft_vocab:
            corpus = self.stream.corpus
            learned = corpus.flat if corpus.mask is None else corpus.flat[corpus.mask]
            vocabulary = hook(config, "draft_vocabulary", "draft_vocab")
            size = self.lm.config.vocab_size
            fields = vocabulary(learned, size, config.draft_vocab)
        self.objective = self.kind.objective(
            self.lm.model, **config.objective.to_dict(), **fields
        )
        key = jax.random.key(config.seed)
        whole = jax.jit(
            lambda key, params: self.kind.init(
                key, self.lm.model, params, **config.init.to_dict(), **fields
            )
        )(key, self.lm.params)
        # The draft vocabulary is data: no optimiser sees it.
        whole, configs = head_config.split(whole)
        self.configs = configs
        loss, quantity = self.objective.loss, self.objective.quantity
        joined = lambda params: head_config.joined(params, configs)
        self.objective = self.objective._replace(
            loss=lambda params, *arguments: loss(joined(params), *arguments),
            quantity=lambda params: quantity(joined(params)),
        )
        self.constants = {n: x for n, x in whole.items() if n in fields}
        self.params = {n: x for n, x in whole.items() if n not in fields}

    def heads(self, params: Any) -> Any:
        """Join the trained params with constants and configs, as decoding needs."""
        return head_config.joined({**params, **self.constants}, self.configs)

    def lesson(self, say: sources.Say) -> sources.TeacherRequest:
        """Describe the teacher that the config names, on this training's batches."""
        rows = text_corpus.DataIterator(self.stream, *sharding.share(self.plan))
        arguments = (self.lm, rows, self.objective.taps)
        return sources.lesson(self.config, *arguments, self.workdir, self.plan, say)

    def fit(self, say: sources.Say = logging.info) -> fit.Result:
        """Train, or resume; every checkpoint holds the heads alone.

        The untrained params move to the host: the trained ones are copies of them.
        """
        c = self.config.train
        self.params = sharding.fetch(self.params)
        steps = self.stream.steps
        kind = self.config.get("teacher", sources.ONLINE)
        rows, target = sources.source(kind, self.lesson(say))
        return fit.fit(
            self.params,
            self.objective,
            scaffold.optimizer(c, steps),
            rows,
            self.workdir,
            fit.FitConfig.from_recipe(c, steps),
            target=target,
            frozen=self.lm.params,
            plan=self.plan,
            evaluate=self.measured,
        )

    def prompts(self, count: int, size: int) -> list[list[int]]:
        """Return `count` prompts from held-out documents, in their order.

        A prompt is the text before the first answer. In raw text it is the second
        `size` tokens, because the first are often a licence.
        """
        new = self.config.evaluate.new_tokens
        return documents.prompts(self.lm, self.held, count, size, new, start=size)

    def hits(self, params: Any, temperature: float) -> list[list[float]]:
        """Measure [depth][rank]: how often the target picks the candidate.

        On held-out text, with the text's own tokens before the candidate.
        """
        c = self.config.evaluate
        measure = self._measure(temperature)
        each = [measure(params, self.lm.params, batch) for batch in self.batches()]
        sums = sharding.fetch(each)
        total, count = (np.sum([np.asarray(s[i]) for s in sums], 0) for i in (0, 1))
        if not count.all():
            raise ConfigError(
                f"evaluate.tokens={c.tokens}: no answer in so many held-out tokens: "
                "use more"
            )
        return (total / count[:, None]).tolist()

    def batches(self) -> list[dict[str, np.ndarray]]:
        """Return the held-out text, in batches of one row."""
        c = self.config.evaluate
        if self.config.data.whole:
            return documents.whole_windows(self.lm, self.held, c.tokens, c.window)
        return documents.windows(self.held, c.tokens, c.window)

    def confidence(self, params: Any) -> dict[str, Any]:
        """Fit the temperatures of confidences, on every other batch of held-out text.

        Returns `temperatures`, a number a draft, and the calibration errors of the
        products on the other batches: `plain`, and `scaled` by the temperatures. Empty
        for heads that rate no draft.
        """
        rate = vars(self.kind).get("confidences")
        batches = self.batches()
        if rate is None or len(batches) < 2:
            return {}
        run = outputs.teacher(self.lm.model, self.objective.taps)
        rate = functools.partial(rate, **agreed(self.config))

        @jax.jit
        def rated(params: Any, frozen: Any, batch: Any) -> tuple[Array, ...]:
            frozen, heads = lora.applied(frozen, self.heads(params))
            return rate(heads, self.lm.model, batch, run(frozen, batch))

        each = [rated(params, self.lm.params, batch) for batch in batches]
        if not each[0]:
            return {}
        rows = []
        for logits, accepted, live in sharding.fetch(each):
            whole = live[..., -1] > 0
            rows.append((logits[whole], accepted[whole]))
        (fit, fit_rates), (other, rates) = (
            [np.concatenate(x) for x in zip(*rows[i::2], strict=True)] for i in (0, 1)
        )
        found = sequential_temperatures.fitted(fit, fit_rates)
        error = functools.partial(sequential_temperatures.errors, other, rates)
        return {
            "temperatures": found,
            "plain": error([1.0] * len(found)),
            "scaled": error(found),
        }

    def _measure(self, temperature: float) -> Any:
        """Compile the sums of a batch; one program for each temperature."""
        if temperature in self._measures:
            return self._measures[temperature]
        c = self.config.evaluate
        run = outputs.teacher(self.lm.model, self.objective.taps)
        guesses = functools.partial(self.kind.guesses, **agreed(self.config))

        @jax.jit
        def measure(params: Any, frozen: Any, batch: Any) -> Any:
            frozen, heads = lora.applied(frozen, self.heads(params))
            teacher = run(frozen, batch)
            candidates = guesses(heads, self.lm.model, batch, teacher, c.depth)
            sums = []
            for i, (states, draft) in enumerate(candidates):
                hidden = outputs.ahead(teacher.hidden[outputs.NORM], 1 + i)
                weights = outputs.predicted(batch, 2 + i)
                sums.append(
                    draft_metrics.by_rank(
                        teacher, draft, states, hidden, weights, c.ranks, temperature
                    )
                )
            return jax.tree.map(lambda *x: jnp.stack(x), *sums)

        self._measures[temperature] = measure
        return measure

    def untrained(self) -> dict[str, float]:
        """Measure the first params, once a workdir."""
        path = self.workdir / "untrained.json"
        if not processes.agreed(path.exists()):
            text = json.dumps(self.measured(self.params)) + "\n"
            processes.written(lambda: storage.write(path, text))
        return processes.told(lambda: json.loads(path.read_text()))

    def measured(self, params: Any) -> dict[str, float]:
        """Measure the guesses on held-out text, and the real decode loop.

        `top<k>_<d>`: how often the target picks one of the k best at depth d (from 0),
        given the text's tokens before it. `after_<d>`: of the loop's rounds that
        accepted drafts down to depth d, the share that accepted one there too (0 if
        there are none). `predicted_tau`: of the tree built from the hits. `tau`: of the
        loop's own tree.
        """
        c = self.config.evaluate
        hits = self.hits(params, c.temperature)
        figures = {
            f"top{k}_{i}": sum(row[:k])
            for i, row in enumerate(hits)
            for k in TOPS
            if k <= len(row)
        }
        _, figures["predicted_tau"] = greedy_search.by_accuracy(hits, c.nodes - 1)
        lm, heads = lora.model(self.lm, self.heads(params))
        out = decoding.generate(
            lm,
            self.prompts(c.prompts, c.prompt_tokens),
            untrained(self.config),
            max_new_tokens=c.new_tokens,
            temperature=c.temperature,
            drafts={"heads": heads},
            width="paper",
        )
        calls = int(sum(out.stats.target_calls))
        figures["tau"] = float(sum(out.stats.new_tokens) / calls)
        rounds = [calls, *out.stats.committed_by_depth]
        for i in range(min(c.depth, len(rounds) - 1)):
            figures[f"after_{i}"] = rounds[i + 1] / max(rounds[i], 1)
        return figures


def run(
    config: Any,
    workdir: str | os.PathLike,
    lm: Any = None,
    say: sources.Say = logging.info,
) -> dict[str, Any]:
    """Train, measure and export; resumable.

    `workdir/export` holds the heads as safetensors, and `heads.json`, which names their
    target. `workdir/figures.json` holds the figures.

    Args:
        config: the recipe.
        workdir: the folder of the run.
        lm: the loaded target; None loads `config.model`.
        say: called with the size of a cache.

    Returns:
        The figures.
    """
    training = Training(config, workdir, lm)
    count = scaffold.num_params(training.params)
    logging.info(
        "%s: %d parameters, %d steps", config.head, count, training.stream.steps
    )
    # Before the fit, which takes the untrained params off the device.
    untrained_figures = training.untrained()
    result = training.fit(say)
    if training.plan is not None:
        result = result._replace(params=sharding.fetch(result.params))
    temperature = config.evaluate.temperature
    # Round first, so that the measured weights are the exported ones.
    exported = _rounded(result.params, config.export_dtype)
    params = jax.tree.map(lambda x, old: x.astype(old.dtype), exported, result.params)
    hits = training.hits(params, temperature)
    about = {
        "head": config.head,
        "target": config.model,
        "fingerprint": native.fingerprint(training.lm.params),
        "method": method(config, hits).to_config(),
        "hits": hits,
        "temperature": temperature,
    }
    if confidence := training.confidence(params):
        about["confidence_temperatures"] = confidence["temperatures"]
    figures = {
        "head": config.head,
        "parameters": count,
        **scaffold.effort(config, result),
        "hits": hits,
        "untrained": untrained_figures,
        "trained": training.measured(params),
        "confidence": confidence,
        **metrics_writer.figures(training.workdir),
    }
    joined, text = training.heads(exported), model_cards.heads(config, figures)
    save = lambda folder: native.save(folder, joined, about, text)
    scaffold.write_export(config, training.workdir, save)
    scaffold.write_figures(training.workdir, figures)
    return figures


def _rounded(params: Any, dtype: str) -> Any:
    """Cast floating params to the dtype of the export."""
    real = jnp.issubdtype

    def cast(x: Any) -> Any:
        return x.astype(dtype) if real(x.dtype, jnp.floating) else x

    return jax.tree.map(cast, params)
