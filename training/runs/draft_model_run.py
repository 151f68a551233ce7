"""From a config to draft models: pre-trained, aligned with a target, measured, saved.

Three parts, each finished or resumed by itself: a new model is trained on text (or
one is loaded), the target writes text of its own, and every variant of the alignment
starts from the same weights, on the same text, under the same schedule.
"""

import functools
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from absl import logging

import decoding
import models
from decoding import Method
from models import io, transformer
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
    """Text of the target: to learn from, and to be measured on."""

    train: list[distill.Text]
    held: list[distill.Text]


def shape(draft: Any, own: transformer.Config) -> transformer.Config:
    """The Config of a new draft, by `config.draft`, of a target with the Config `own`.

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
    """The drafts of one target: what a config says, resolved."""

    def __init__(
        self,
        config: Any,
        workdir: str | pathlib.Path,
        lm: Any = None,
        say: sources.Say = logging.info,
    ):
        self.config, self.workdir, self.say = config, pathlib.Path(workdir), say
        self.lm = scaffold.target(config, lm)
        self.plan = sharding.training(self.lm.model.plan, config.rules)
        self.documents = scaffold.both_splits(config, self.lm, self.workdir)
        self.model = transformer.transformer(self._shape())
        self._one = jax.jit(self._metrics())

    def _shape(self) -> transformer.Config:
        """The draft's config: of the model it starts from, or of `config.draft`."""
        d, own = self.config.draft, self.lm.config
        if d.start:
            start = models.load(d.start)
            found, name = start.config, f"config.draft.start={d.start!r}"
            if found.vocab_size != own.vocab_size:
                raise ConfigError(
                    f"{name} has a vocabulary of {found.vocab_size}, the target one of "
                    f"{own.vocab_size}: start from a model with the target's tokenizer"
                )
            hf_tokenizer.check_same(name, start.tokenizer, self.lm.tokenizer)
            return found
        return shape(d, own)

    def _fit(
        self, name: str, params: Any, own: train_step.Objective, train, tokens, **more
    ):
        """One training; every one has the config's schedule over its own steps.

        Beside a `frozen` target it learns from that: all variants from the same cache,
        where the config asks for one.
        """
        t = self.config.train
        stream = scaffold.stream(self.config, self.lm, train, tokens)
        rows = text_corpus.DataIterator(stream, *sharding.share(self.plan))
        batches: fit.Data = rows
        if "frozen" in more:
            given = (self.config, self.lm, rows, own.taps, self.workdir, self.plan)
            kind = self.config.get("teacher", sources.ONLINE)
            lesson = sources.lesson(*given, self.say)
            batches, more["target"] = sources.source(kind, lesson)
        peak = t.rate if "frozen" in more else t.pretraining_rate
        return fit.fit(
            params,
            own,
            scaffold.optimizer(t, stream.steps, peak),
            batches,
            self.workdir / name,
            fit.FitConfig.from_recipe(t, stream.steps),
            plan=self.plan,
            **more,
        )

    def pretrained(self, name: str = "pretraining") -> Any:
        """Params before the alignment: loaded, or trained on the text (FastDraft).

        The training's files are in the folder `name`.
        """
        c = self.config
        params = self.model.init(jax.random.key(c.seed))
        if c.draft.start:
            params = models.load(c.draft.start, dtype=jnp.float32).params
        if not c.data.pretraining_tokens:
            return params
        own = next_token.objective(self.model.config)
        tokens = c.data.pretraining_tokens
        return self._fit(name, params, own, self.documents[0], tokens).params

    def aligned(self, name: str, start: Any, written: Written) -> Any:
        """The result of one variant, from `start`."""
        fields = self.config.variants[name].to_dict()
        own = draft_model.objective(self.model, part=self.config.train.part, **fields)
        train = documents.of_texts(written.train)
        more = {
            "frozen": self.lm.params,
            "evaluate": lambda params: self.measured(params, written.held),
        }
        tokens = self.config.data.tokens
        return self._fit(name, start, own, train, tokens, **more)

    def _metrics(self) -> Any:
        own = draft_model.objective(self.model, "kl")
        read = outputs.teacher(self.lm.model)

        def metrics(params: Any, frozen: Any, batch: Any) -> Any:
            found = own.loss(params, batch, read(frozen, batch))[1]
            return {**found, "n": own.weight(batch)}

        return metrics

    def prompts(self) -> list[list[int]]:
        """Of held-out documents, for the decode loop."""
        return scaffold.held_out_prompts(self.config, self.lm, self.documents[1])

    def measured(self, params: Any, held: list[distill.Text]) -> dict[str, float]:
        """On the target's held-out text: nats, acceptance, and the decode loop's tau.

        Perplexity and acceptance need not agree, so both are there.
        """
        c = self.config.evaluate
        sums: dict[str, float] = {}
        for batch in documents.padded(held):
            one = self._one(params, self.lm.params, batch)
            found = {k: float(v) for k, v in one.items()}
            for k, v in found.items():
                own = v if k == "n" else v * found["n"]
                sums[k] = sums.get(k, 0.0) + own
        count = sums.pop("n")
        out = decoding.generate(
            self.lm,
            self.prompts(),
            method(self.config),
            max_new_tokens=c.new_tokens,
            temperature=c.temperature,
            drafts={"draft": self.loaded(params)},
        )
        tau = float(sum(out.stats.new_tokens) / sum(out.stats.target_calls))
        return {**{k: v / count for k, v in sums.items()}, "tau": tau}

    def loaded(self, params: Any) -> models.Loaded:
        """The draft as `decoding` takes it, where the target lies."""
        own = models.Loaded(self.model, params, self.lm.tokenizer)
        return io.placed(own, self.lm.model.plan)


def write(
    lm: Any,
    given: Sequence[documents.Documents],
    c: Any,
    folder: pathlib.Path,
    seed: int,
) -> Written:
    """The target's text after requests of both splits: `distill`, resumed.

    `c` has `prompts`, `held`, `prompt_tokens`, `new_tokens`, `temperatures` and
    `batch`; the prompts are shared among the temperatures.
    """
    sizes = (c.prompt_tokens, c.new_tokens)
    asked = [  # of both before the target runs: either may have none
        documents.requests(lm, own, count, *sizes, seed)
        for own, count in zip(given, (c.prompts, c.held))
    ]
    found = []
    for split, (count, passages) in enumerate(zip((c.prompts, c.held), asked)):
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
        found.append(texts)
    return Written(*found)


def method(config: Any) -> Method:
    """Chains of the draft's tokens, by the config's drafter."""
    chain = {"name": "topologies/chain", "length": config.evaluate.length}
    return Method.from_config({"drafter": config.drafter.to_dict(), "topology": chain})


def run(
    config: Any,
    workdir: str | pathlib.Path,
    lm: Any = None,
    say: sources.Say = logging.info,
) -> dict[str, Any]:
    """Train, measure and save every variant; resumes where it stopped.

    `workdir/<variant>/export` is a model directory for `models.load`;
    `workdir/figures.json` holds the figures, before any alignment too. `say` is told
    what a cache takes.
    """
    training = Training(config, workdir, lm, say)
    training.prompts()  # too few are an error before anything is trained
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
        whole = sharding.fetch(result.params)
        draft = models.Loaded(training.model, whole, training.lm.tokenizer)
        export = functools.partial(models.save, draft, folder / "export")
        processes.written(export, f"export of {name}")
        figures["variants"][name] = {
            **scaffold.effort(config, result),
            "after": training.measured(result.params, written.held),
            **metrics_writer.figures(folder),
        }
        logging.info("%s: %s", name, figures["variants"][name]["after"])
    scaffold.write_figures(training.workdir, figures)
    return figures
