"""From a config to trained, measured and exported draft heads of a target."""

import dataclasses
import functools
import importlib
import inspect
import pathlib
import pkgutil
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging

import decoding
from decoding import Method
from decoding.tree_design import greedy_search
from models.distributed import sharding
from models.errors import ConfigError
from models.heads.formats import native
from models.heads.modules import head_config
from models.surgery import lora
from training import draft_metrics
from training.data import documents, text_corpus
from training.loop import fit, metrics_writer
from training.objectives import heads
from training.runs import model_cards, scaffold
from training.teacher import outputs, sources

TOPS = (1, 2, 4, 8)  # guesses of a depth, of which one is to be right


def names() -> list[str]:
    """Every head that has an objective, by the name of its file."""
    return sorted(info.name for info in pkgutil.iter_modules(heads.__path__))


def module(name: str) -> Any:
    """The objective's module: `init`, `objective`, `guesses`, and hooks.

    Hooks are functions that only some objectives have. `draft_vocabulary(tokens,
    vocab_size, count)` gives, as keyword arguments of `init` and `objective`, the
    tokens that the head drafts; `tree(method, hits, budget)` a tree of its own kind.
    """
    if name not in names():
        raise ConfigError(f"config.head={name!r}: use one of {names()}")
    return importlib.import_module(f"training.objectives.heads.{name}")


def hook(config: Any, name: str, field: str) -> Any:
    """The objective's hook `name`, which `field` of the config calls for."""
    found = vars(module(config.head)).get(name)
    if found is None:
        raise ConfigError(
            f"config.{field}={config[field]}: the head {config.head!r} has no "
            f"{name}(); set it to 0"
        )
    return found


def agreed(config: Any) -> dict[str, Any]:
    """The objective's fields that its guesses and its drafter must have, too."""
    names = inspect.signature(module(config.head).guesses).parameters
    return {n: x for n, x in config.objective.to_dict().items() if n in names}


def untrained(config: Any) -> Method:
    """The config's method, whose tree knows nothing of hits."""
    given = Method.from_config(config.method.to_dict())
    return given.with_drafter(**agreed(config))


def method(config: Any, hits: Sequence[Sequence[float]]) -> Method:
    """The config's method; its tree made from measured hits, where it says so."""
    given = untrained(config)
    if config.tree_budget:
        return hook(config, "tree", "tree_budget")(given, hits, config.tree_budget)
    if not config.tree_nodes:
        return given
    choices, _ = greedy_search.by_accuracy(hits, config.tree_nodes - 1)
    topology = decoding.Spec("topologies/static", choices=choices)
    return dataclasses.replace(given, topology=topology)


class Training:
    """One head on one target: what a config says, resolved."""

    def __init__(self, config: Any, workdir: str | pathlib.Path, lm: Any = None):
        self.config, self.workdir = config, pathlib.Path(workdir)
        self.kind = module(config.head)
        self._measures: dict[float, Any] = {}
        self.lm = scaffold.target(config, lm)
        self.plan = sharding.training(self.lm.model.plan, config.get("rules", ""))
        own, self.held = scaffold.both_splits(config, self.lm, self.workdir)
        self.stream = scaffold.stream(config, self.lm, own, config.data.tokens)
        given: dict[str, Any] = {}
        if config.draft_vocab:
            corpus = self.stream.corpus
            learned = corpus.flat if corpus.mask is None else corpus.flat[corpus.mask]
            vocabulary = hook(config, "draft_vocabulary", "draft_vocab")
            size = self.lm.config.vocab_size
            given = vocabulary(learned, size, config.draft_vocab)
        self.objective = self.kind.objective(
            self.lm.model, **config.objective.to_dict(), **given
        )
        key = jax.random.key(config.seed)
        whole = jax.jit(
            lambda key, params: self.kind.init(
                key, self.lm.model, params, **config.init.to_dict(), **given
            )
        )(key, self.lm.params)
        # The draft vocabulary is data: no optimiser sees it.
        whole, configs = head_config.split(whole)
        self.configs, loss = configs, self.objective.loss
        self.objective = self.objective._replace(
            loss=lambda params, *given: loss(
                head_config.joined(params, configs), *given
            )
        )
        self.constants = {n: x for n, x in whole.items() if n in given}
        self.params = {n: x for n, x in whole.items() if n not in given}

    def heads(self, params: Any) -> Any:
        """What decoding takes, from the trained part."""
        return head_config.joined({**params, **self.constants}, self.configs)

    def lesson(self, say: sources.Say) -> sources.TeacherRequest:
        """The batches, and what the target says of them by the config."""
        rows = text_corpus.DataIterator(self.stream, *sharding.share(self.plan))
        own = (self.lm, rows, self.objective.taps)
        return sources.lesson(self.config, *own, self.workdir, self.plan, say)

    def fit(self, say: sources.Say = logging.info) -> fit.Result:
        """Train, or resume; every checkpoint holds the heads alone."""
        c = self.config.train
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
        """Of held-out documents, in their order: what stands before the first answer,
        or, of raw text, the second `size` tokens: the first are often a licence.
        """
        new = self.config.evaluate.new_tokens
        return documents.prompts(self.lm, self.held, count, size, new, start=size)

    def hits(self, params: Any, temperature: float) -> list[list[float]]:
        """[depth][rank]: how often the target picks the candidate, on held-out text.

        Given that the path to it is the text's own.
        """
        c = self.config.evaluate
        batches = documents.windows(self.held, c.tokens, c.window)
        measure = self._measure(temperature)
        each = [measure(params, self.lm.params, batch) for batch in batches]
        sums = sharding.fetch(each)
        total, count = (np.sum([np.asarray(s[i]) for s in sums], 0) for i in (0, 1))
        if not count.all():
            raise ConfigError(
                f"evaluate.tokens={c.tokens}: no answer in so many held-out tokens"
            )
        return (total / count[:, None]).tolist()

    def _measure(self, temperature: float) -> Any:
        """The compiled sums of a batch; one program for each temperature."""
        if temperature in self._measures:
            return self._measures[temperature]
        c = self.config.evaluate
        run = outputs.teacher(self.lm.model, self.objective.taps)
        guesses = functools.partial(self.kind.guesses, **agreed(self.config))

        @jax.jit
        def measure(params: Any, frozen: Any, batch: Any) -> Any:
            frozen, heads = lora.applied(frozen, self.heads(params))
            teacher = run(frozen, batch)
            found = guesses(heads, self.lm.model, batch, teacher, c.depth)
            sums = []
            for i, (states, draft) in enumerate(found):
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

    def measured(self, params: Any) -> dict[str, float]:
        """Held out: what guesses are worth along a text, and in the real decode loop.

        `top<k>_<d>`: how often the target picks one of the k best at depth d (from 0),
        given the text's tokens before it; `after_<d>`: of the loop's rounds that took
        drafts down to depth d, how many took one there too (0 where there are none);
        `predicted_tau`: of the tree that the hits make; `tau`: the loop's own tree.
        """
        c = self.config.evaluate
        hits = self.hits(params, c.temperature)
        found = {
            f"top{k}_{i}": sum(row[:k])
            for i, row in enumerate(hits)
            for k in TOPS
            if k <= len(row)
        }
        _, found["predicted_tau"] = greedy_search.by_accuracy(hits, c.nodes - 1)
        lm, heads = lora.model(self.lm, self.heads(params))
        out = decoding.generate(
            lm,
            self.prompts(c.prompts, c.prompt_tokens),
            untrained(self.config),
            max_new_tokens=c.new_tokens,
            temperature=c.temperature,
            drafts={"heads": heads},
        )
        calls = int(sum(out.stats.target_calls))
        found["tau"] = float(sum(out.stats.new_tokens) / calls)
        rounds = [calls, *out.stats.committed_by_depth]
        for i in range(min(c.depth, len(rounds) - 1)):
            found[f"after_{i}"] = rounds[i + 1] / max(rounds[i], 1)
        return found


def run(
    config: Any,
    workdir: str | pathlib.Path,
    lm: Any = None,
    say: sources.Say = logging.info,
) -> dict[str, Any]:
    """Train, measure and export; resumes where it stopped. Returns the figures.

    `workdir/export` holds the heads as safetensors with what they are for;
    `workdir/figures.json` the figures. `say` is told what a cache takes.
    """
    training = Training(config, workdir, lm)
    count = scaffold.num_params(training.params)
    logging.info(
        "%s: %d parameters, %d steps", config.head, count, training.stream.steps
    )
    result = training.fit(say)
    if training.plan is not None:
        result = result._replace(params=sharding.fetch(result.params))
    temperature = config.evaluate.temperature
    # What is measured is what is written: rounded first.
    written = _rounded(result.params, config.export_dtype)
    params = jax.tree.map(lambda x, old: x.astype(old.dtype), written, result.params)
    hits = training.hits(params, temperature)
    about = {
        "head": config.head,
        "target": config.model,
        "fingerprint": native.fingerprint(training.lm.params),
        "method": method(config, hits).to_config(),
        "hits": hits,
        "temperature": temperature,
    }
    figures = {
        "head": config.head,
        "parameters": count,
        **scaffold.effort(config, result),
        "hits": hits,
        "untrained": training.measured(training.params),
        "trained": training.measured(params),
        **metrics_writer.figures(training.workdir),
    }
    whole, text = training.heads(written), model_cards.heads(config, figures)
    save = lambda folder: native.save(folder, whole, about, text)
    scaffold.write_export(config, training.workdir, save)
    scaffold.write_figures(training.workdir, figures)
    return figures


def _rounded(params: Any, dtype: str) -> Any:
    """Floating params in the dtype of the export."""
    real = jnp.issubdtype

    def cast(x: Any) -> Any:
        return x.astype(dtype) if real(x.dtype, jnp.floating) else x

    return jax.tree.map(cast, params)
