"""SpecEE from a config: exit predictors for a target, and their effect on its text.

EAGLE's layer, which proposes the candidates, is loaded, or trained here first. The
layers where held-out tokens stop most often are the first level of the schedule. Two
untrained rules are compared with the predictors: stop after a fixed layer, and stop
where the candidates' distribution is confident.
"""

import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging

import decoding
from models import storage
from models.distributed import processes
from models.errors import ConfigError
from models.heads.formats import native
from models.predictors import exit_predictor
from training.data import documents, text_corpus
from training.evaluation import calibration, lossy_quality
from training.loop import fit
from training.objectives.predictors import specee
from training.runs import draft_head_run, scaffold


class Training:
    """The predictors of one target with the data and draft head of a config."""

    def __init__(self, config: Any, workdir: str | os.PathLike, lm: Any = None):
        self.config, self.workdir = config, storage.path(workdir)
        self.lm = scaffold.target(config, lm)
        self.documents = scaffold.both_splits(config, self.lm, self.workdir)
        held, e = self.documents[1], config.evaluate
        sizes = (e.prompts, e.prompt_tokens, e.new_tokens)
        self.prompts = documents.requests(self.lm, held, *sizes, config.seed)
        self.draft = native.load(self._draft(), self.lm)
        self.frozen = {"target": self.lm.params, "heads": self.draft}

    def _draft(self) -> storage.Path:
        """Return the folder of EAGLE's layer, trained here if the config names none."""
        if self.config.heads:
            return storage.path(self.config.heads)
        folder = self.workdir / "eagle"
        if not processes.agreed((folder / "figures.json").exists()):
            eagle = self.config.eagle.copy_and_resolve_references()
            eagle.model, eagle.data.source = self.config.model, self.config.data.source
            eagle.data.directory = str(scaffold.data_folder(self.config, self.workdir))
            draft_head_run.run(eagle, folder, self.lm)
        return folder / "export"

    def answers(self, asked: float) -> Any:
        """Build the layers' answers; each predictor is called with chance `asked`."""
        o = self.config.objective
        return specee.answers(
            self.lm.model, o.candidates, asked, self.config.seed, o.part
        )

    def first(self) -> Any:
        """Draw the params of untrained predictors."""
        o, key = self.config.objective, jax.random.key(self.config.seed)
        depth = self.lm.config.n_layers
        return exit_predictor.init(key, depth, o.candidates, o.width)

    def fit(self) -> fit.Result:
        """Train, or resume; checkpoints hold the predictors alone."""
        c, t, o = self.config.data, self.config.train, self.config.objective
        stream = scaffold.stream(self.config, self.lm, self.documents[0], c.tokens)
        return fit.fit(
            self.first(),
            specee.objective(),
            scaffold.optimizer(t, stream.steps),
            text_corpus.DataIterator(stream),
            self.workdir,
            fit.FitConfig.from_recipe(t, stream.steps),
            target=self.answers(o.asked),
            frozen=self.frozen,
        )

    def held_out(self, params: Any) -> dict[str, Any]:
        """Measure the objective's metrics, and where tokens stop with every predictor.

        `stops`: the share of positions that stop after 1, 2, .. L layers.
        `calibration`: the predictions of all predictors, beside whether their layer was
        right.
        """
        c, depth = self.config.evaluate, self.lm.config.n_layers
        batches = documents.windows(self.documents[1], c.tokens, c.window)
        read, objective = self.answers(1.0), specee.objective()

        @jax.jit
        def one(params: Any, frozen: Any, batch: Any) -> Any:
            answers = read(frozen, batch)
            loss, metrics = objective.loss(params, batch, answers)
            sure = specee.log_odds(params, answers.features) > 0
            stop, first = specee.first_stops(sure, answers)
            layer = jnp.where(stop > 0, first, depth - 1)
            counts = jnp.zeros(depth).at[layer].add(answers.weights)
            chances = jax.nn.sigmoid(specee.log_odds(params, answers.features))
            share = jnp.broadcast_to(answers.weights[..., None], chances.shape)
            return {**metrics, "loss": loss}, counts, (chances, answers.right, share)

        each = [one(params, self.frozen, batch) for batch in batches]
        places = [float(np.sum(m[1])) for m in each]
        if not sum(places):
            raise ConfigError(
                f"evaluate.tokens={c.tokens}: no answer in so many held-out tokens: "
                "use more"
            )
        metrics = {
            k: float(np.average([m[0][k] for m in each], weights=places))
            for k in each[0][0]
        }
        counts = np.sum([np.asarray(m[1]) for m in each], 0)
        chances, right, share = (
            np.stack([np.asarray(m[2][i]) for m in each]) for i in range(3)
        )
        return {
            **metrics,
            "stops": (counts / counts.sum()).tolist(),
            "calibration": calibration.bins(chances, right, share)._asdict(),
        }

    def decoded(self, params: Any, static: tuple[int, ...]) -> dict[str, Any]:
        """Measure layers a token and the text's distance, by schedule and rule."""
        c, depth = self.config.evaluate, self.lm.config.n_layers
        every, size = tuple(range(depth - 1)), self.config.objective.candidates
        methods = {}
        for name, layers in (("two levels", static), ("every layer", every)):
            for threshold in c.thresholds:
                spec = decoding.Spec(
                    "exits/specee", static=layers, threshold=float(threshold)
                )
                methods[f"{name}, {threshold:g}"] = (decoding.Method(exit=spec), params)
        rules = {f"layer {i + 1}": exit_predictor.after(depth, size, i) for i in every}
        for share in c.confidences:
            rules[f"confidence {share:g}"] = exit_predictor.sure(
                depth, size, float(share)
            )
        for name, rule in rules.items():
            spec = decoding.Spec("exits/specee", static=every, threshold=0.5)
            methods[name] = (decoding.Method(exit=spec), rule)
        results = lossy_quality.compared(
            self.lm,
            self.prompts,
            {
                name: (method, {"heads": self.draft, "exits": rule})
                for name, (method, rule) in methods.items()
            },
            c.new_tokens,
            c.temperature,
        )
        for name, row in results.items():
            exits, each = row.pop("exits"), row["each"]
            each["layers"] = [float(depth * n) for n in each["calls"]]
            if name != "plain":
                taken = [np.asarray(shared.taken) for shared in exits]
                each["layers"] = [float(n @ np.arange(1, depth + 1)) for n in taken]
            row["layers"] = sum(each["layers"]) / sum(each["calls"])
        return results


def frequent(stops: list[float], count: int) -> tuple[int, ...]:
    """Return the `count` layers where most tokens stop early, ascending, from 0."""
    early = np.asarray(stops[:-1])
    if not 1 <= count <= len(early):
        raise ConfigError(f"static={count}: choose 1 to {len(early)} layers")
    best = np.argsort(-early, kind="stable")[:count]
    return tuple(sorted(best.tolist()))


def run(config: Any, workdir: str | os.PathLike, lm: Any = None) -> dict[str, Any]:
    """Train, measure, decode and export; resumable. Returns the figures.

    `workdir/export` holds the predictors, `workdir/figures.json` the figures.
    """
    training = Training(config, workdir, lm)
    result = training.fit()
    params = jax.tree.map(jnp.asarray, result.params)
    held = training.held_out(params)
    static = frequent(held["stops"], config.static)
    figures: dict[str, Any] = {
        "parameters": scaffold.num_params(params),
        **scaffold.effort(config, result),
        "held_out": held,
        "static": list(static),
        "decoding": training.decoded(params, static),
    }
    about = {
        "head": "exits",
        "target": config.model,
        "fingerprint": native.fingerprint(training.lm.params),
        "static": list(static),
        "stops": held["stops"],
    }
    save = lambda folder: native.save(folder, params, about)
    scaffold.write_export(config, training.workdir, save)
    scaffold.write_figures(training.workdir, figures)
    logging.info("held out: %s", held)
    return figures
