"""SkipDecode from a config: a target trained under schedules of layers.

For each budget (max, min) low-rank changes of the target are trained under the
schedule, and, for comparison, under the best fixed set of as many layers as the
schedule's mean.
"""

import os
from typing import Any

import numpy as np

from decoding.exits import skipdecode as schedule
from models import storage
from models.errors import ConfigError
from models.heads.formats import native
from models.predictors import layer_router
from training.loop import fit
from training.objectives.predictors import first, skipdecode
from training.runs import layer_router_run, scaffold

Budget = tuple[int, int]


class Training(layer_router_run.Training):
    """The changes of one target with the data of a config."""

    def mean(self, budget: Budget) -> int:
        """Return the mean of a schedule's layers over a text, rounded."""
        most, least = budget
        tokens = self.config.tokens
        each = schedule.active(np.arange(tokens), most, least, tokens)
        return max(round(float(np.mean(np.asarray(each)))), 1)

    def scheduled(self, budget: Budget) -> fit.Result:
        """Train changes of the target under a budget's schedule, or resume."""
        c, (most, least) = self.config, budget
        own = skipdecode.objective(
            self.lm.model,
            c.adapt.prompt,
            least,
            c.tokens,
            most,
            c.warm,
            c.objective.part,
        )
        return self._changes(own, {"target": self.lm.params}, f"budget_{most}_{least}")

    def under(self, layers: list[int]) -> fit.Result:
        """Train changes of the target under a fixed set of layers, or resume."""
        c = self.config
        routers = layer_router.fixed(self.depth, self.width, layers)
        part, threshold = c.objective.part, c.objective.threshold
        own = first.adapted(self.lm.model, c.adapt.prompt, threshold, part)
        frozen = {"target": self.lm.params, "routers": routers}
        return self._changes(own, frozen, f"fixed_{len(layers)}")

    def _changes(self, own: Any, frozen: Any, name: str) -> fit.Result:
        size = (self.config.data.tokens, self.config.adapt.rate)
        return self._fit(self.unchanged(), own, *size, self.workdir / name, frozen)


def run(config: Any, workdir: str | os.PathLike, lm: Any = None) -> dict[str, Any]:
    """Train and export; resumable. Returns the figures.

    `workdir/export/<max>_<min>` and `workdir/export/fixed_<count>` hold the changes;
    `workdir/figures.json` the fixed sets and the lengths of the fits. ConfigError for a
    budget that the target's layers do not allow.
    """
    training = Training(config, workdir, lm)
    for most, least in config.budgets:
        if not config.warm < least <= most <= training.depth:
            raise ConfigError(
                f"config.budgets has ({most}, {least}): use "
                f"warm={config.warm} < min <= max <= {training.depth} layers"
            )
    about = {
        "head": "lora",
        "target": config.model,
        "fingerprint": native.fingerprint(training.lm.params),
    }
    changes: dict[str, Any] = {}
    figures: dict[str, Any] = {"sets": training.sets(), "budgets": {}, "fixed": {}}
    for budget in config.budgets:
        most, least = map(int, budget)
        count = training.mean((most, least))
        result = training.scheduled((most, least))
        name = f"{most}_{least}"
        changes[name] = result.params
        figures["budgets"][name] = {"count": count, **scaffold.effort(config, result)}
        if f"fixed_{count}" not in changes:
            layers = training.best_set(count)
            result = training.under(layers)
            changes[f"fixed_{count}"] = result.params
            figures["fixed"][str(count)] = {
                "set": layers,
                **scaffold.effort(config, result),
                **graded(training, layers, result.params),
            }

    def save(folder: storage.Path) -> None:
        for name, params in changes.items():
            native.save(folder / name, params, about)

    scaffold.write_export(config, training.workdir, save)
    scaffold.write_figures(training.workdir, figures)
    return figures


def graded(training: Training, layers: list[int], changes: Any) -> dict[str, float]:
    """Return held-out nats under a fixed set, before and after its training."""
    routers = layer_router.fixed(training.depth, training.width, layers)
    before, after = training.grade(routers), training.grade(routers, changes)
    return {"nats_before": before["nats"], "nats_after": after["nats"]}
