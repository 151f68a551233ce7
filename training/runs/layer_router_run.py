"""FiRST from a config: routers of a target's layers, then the target under them.

For each price of a layer, routers are trained, and then low-rank changes of the target.
Held-out rows are graded as decoding runs them: their beginning votes, the rest takes
the chosen layers. Two controls keep as many layers as the routers do: random ones, and
the set that is best for all rows alike, found on training text layer by layer.
"""

import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging

from models import storage
from models.heads.formats import native
from models.predictors import layer_router
from models.surgery import lora
from training.data import documents, text_corpus
from training.loop import fit
from training.objectives.predictors import first
from training.runs import scaffold
from training.teacher.outputs import mean, predicted

ROWS = 8  # graded in one call


class Training:
    """The routers of one target with the data of a config."""

    def __init__(self, config: Any, workdir: str | os.PathLike, lm: Any = None):
        self.config, self.workdir = config, storage.path(workdir)
        self.lm = scaffold.target(config, lm)
        self.documents = scaffold.both_splits(config, self.lm, self.workdir)
        c = config.evaluate
        self.held = together(documents.windows(self.documents[1], c.tokens, c.window))
        count, seed = max(c.searched // c.window, 1), self.config.seed
        texts = self.documents[0].tokens
        passages = documents.random_passages(texts, count, c.window, seed)
        self.seen = together([{"tokens": row[None]} for row in passages])
        self._path: list[list[int]] = []
        shape = self.lm.config
        self.depth, self.width = shape.n_layers, shape.d_model
        model, prompt = self.lm.model, c.prompt
        threshold, part = config.objective.threshold, config.objective.part

        def row(target: Any, changes: Any, routers: Any, batch: Any) -> tuple:
            gates: list = []
            here = jnp.arange(batch["tokens"].shape[1]) >= prompt
            weights = predicted(batch, 1) * here
            share = first.chosen(routers, prompt, gates, threshold)
            rest = (batch, weights, share, part)
            ce = first.cross_entropy(model, target, changes, *rest)
            return ce, mean(jnp.stack(gates).sum(0), weights), weights.sum()

        self._graded = jax.jit(jax.vmap(row, in_axes=(None, None, None, 0)))

    def first(self) -> Any:
        """Make untrained routers."""
        return layer_router.init(self.depth, self.width, self.config.objective.bias)

    def unchanged(self) -> Any:
        """Make changes of the target that are zero."""
        key, rank = jax.random.key(self.config.seed), self.config.adapt.rank
        return lora.init(key, self.lm.params, rank, head=False)

    def folder(self, price: float, stage: int) -> storage.Path:
        """Return where a stage, 1 or 2, trains at a price of a layer."""
        return self.workdir / f"price_{price:g}_stage_{stage}"

    def route(self, price: float) -> fit.Result:
        """Train routers at a price of a layer, or resume."""
        own = first.objective(self.lm.model, price, self.config.objective.part)
        frozen, folder = {"target": self.lm.params}, self.folder(price, 1)
        size = (self.config.data.tokens, self.config.train.rate)
        return self._fit(self.first(), own, *size, folder, frozen)

    def adapt(self, price: float, routers: Any) -> fit.Result:
        """Train changes of the target under the routers of a price, or resume."""
        a, o = self.config.adapt, self.config.objective
        own = first.adapted(self.lm.model, a.prompt, o.threshold, o.part)
        frozen = {"target": self.lm.params, "routers": routers}
        size = (a.tokens, a.rate)
        return self._fit(self.unchanged(), own, *size, self.folder(price, 2), frozen)

    def _fit(
        self,
        params: Any,
        objective: Any,
        tokens: int,
        rate: float,
        folder: Any,
        frozen: Any,
    ) -> fit.Result:
        t = self.config.train
        stream = scaffold.stream(self.config, self.lm, self.documents[0], tokens)
        result = fit.fit(
            params,
            objective,
            scaffold.optimizer(t, stream.steps, rate),
            text_corpus.DataIterator(stream),
            folder,
            fit.FitConfig.from_recipe(t, stream.steps),
            target=first.given,
            frozen=frozen,
        )
        return result._replace(params=jax.tree.map(jnp.asarray, result.params))

    def grade(
        self, routers: Any, changes: Any = None, rows: Any = None
    ) -> dict[str, Any]:
        """Measure nats and layers of a token on rows, by default the held-out ones.

        `each` are the nats of every row, to be compared in pairs.
        """
        about = (self.lm.params, changes, routers)
        rows = self.held if rows is None else rows
        found = [jax.device_get(self._graded(*about, batch)) for batch in rows]
        nats, layers, weights = np.concatenate([np.asarray(x) for x in found], 1)
        average = lambda x: float(np.average(x, weights=weights))
        return {
            "nats": average(nats),
            "layers": average(layers),
            "each": nats.tolist(),
        }

    def fixed(self, layers: Any, rows: Any = None) -> dict[str, Any]:
        """Grade a set of layers that all rows take."""
        routers = layer_router.fixed(self.depth, self.width, set(layers))
        return self.grade(routers, rows=rows)

    def random(self, count: int, draws: int) -> list[dict[str, Any]]:
        """Grade so many random sets of `count` layers."""
        rng = np.random.default_rng(self.config.seed)
        sets = [rng.permutation(self.depth)[:count].tolist() for _ in range(draws)]
        return [{**self.fixed(layers), "set": sorted(layers)} for layers in sets]

    def sets(self) -> list[list[int]]:
        """Return a fixed set of every size, from all layers to one.

        Layers go one at a time, each the one that costs training text least.
        """
        path = self._path or [[*range(self.depth)]]
        while len(path[-1]) > 1:
            rests = [[x for x in path[-1] if x != layer] for layer in path[-1]]
            nats = [self.fixed(rest, self.seen)["nats"] for rest in rests]
            path.append(rests[int(np.argmin(nats))])
        self._path = path
        return path

    def best_set(self, count: int) -> list[int]:
        """Return the fixed set of `count` layers that training text chose."""
        return self.sets()[self.depth - count]

    def best(self, count: int) -> dict[str, Any]:
        """Grade that set."""
        layers = self.best_set(count)
        return {**self.fixed(layers), "set": layers}


def together(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Stack batches of one row, [1, T], into [at most `ROWS`, 1, T]."""
    parts = [rows[i : i + ROWS] for i in range(0, len(rows), ROWS)]
    return [{name: np.stack([r[name] for r in p]) for name in p[0]} for p in parts]


def run(config: Any, workdir: str | os.PathLike, lm: Any = None) -> dict[str, Any]:
    """Train, grade and export; resumable. Returns the figures.

    `workdir/export/<price>` holds the routers, and with a second stage the changes;
    `workdir/figures.json` the figures.
    """
    training = Training(config, workdir, lm)
    every = set(range(training.depth))
    figures: dict[str, Any] = {"dense": training.fixed(every), "prices": {}}
    figures["sets"] = training.sets()
    best: dict[int, Any] = {}
    for price in config.sparsities:
        result = training.route(float(price))
        routers, changes = result.params, None
        own = training.grade(routers)
        count = max(round(own["layers"]), 1)
        if count not in best:
            best[count] = training.best(count)
        row = {
            "parameters": scaffold.num_params(routers),
            **scaffold.effort(config, result),
            "routers": own,
            "random": training.random(count, config.evaluate.draws),
            "best": best[count],
        }
        if config.adapt.rank:
            changes = training.adapt(float(price), routers).params
            row["adapted"] = training.grade(routers, changes)
        figures["prices"][f"{price:g}"] = row
        logging.info("sparsity %g: %s", price, own)
        _export(training, f"{price:g}", routers, changes)
    scaffold.write_figures(training.workdir, figures)
    return figures


def _export(training: Training, price: str, routers: Any, changes: Any) -> None:
    """Write one price's params."""
    config = training.config
    about = {
        "head": "exits",
        "target": config.model,
        "fingerprint": native.fingerprint(training.lm.params),
    }

    def save(folder: storage.Path) -> None:
        native.save(folder / price, routers, about)
        if changes is not None:
            native.save(folder / f"{price}_lora", changes, {**about, "head": "lora"})

    scaffold.write_export(config, training.workdir, save)
