"""The stage `layer_routers`: routers that leave layers out, beside fixed sets (FiRST).

The report has, at every price of a layer, the layers that routers keep and the nats of
held-out text, beside random layers and the best fixed set of as many.
"""

import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from experiments.run_folder import RunFolder
from experiments.stage import Stage, Trial
from experiments.trainings import lossy_quality_tables
from models.distributed import processes
from training.runs import layer_router_run


def run(config: Any, folder: RunFolder, lm: Any = None) -> dict:
    """Train routers if none are stored; compare them with fixed sets of layers."""
    if not processes.agreed((folder.path / "figures.json").exists()):
        layer_router_run.run(config, folder.path, lm)
    trained = lossy_quality_tables.read(folder)
    return lossy_quality_tables.study(folder, trained, [table(trained)], [])


def table(trained: dict[str, Any]) -> dict[str, Any]:
    """Tabulate the figures of `layer_router_run.run`."""
    dense = trained["dense"]
    lines = [["all layers", f"{dense['layers']:.2f}", f"{dense['nats']:.3f}", ""]]
    for price, row in trained["prices"].items():
        random = row["random"]
        arms = {"routers": row["routers"], "best fixed set": row["best"]}
        if "adapted" in row:
            arms["routers, target adapted"] = row["adapted"]
        arms["random layers"] = {
            "layers": np.mean([r["layers"] for r in random]),
            "nats": np.mean([r["nats"] for r in random]),
            "each": np.mean([r["each"] for r in random], 0),
        }
        for name, arm in arms.items():
            gap = np.asarray(arm["each"]) - np.asarray(dense["each"])
            error = gap.std(ddof=1) / len(gap) ** 0.5 if len(gap) > 1 else 0.0
            lines.append(
                [
                    f"{name}, price {price}",
                    f"{arm['layers']:.2f}",
                    f"{arm['nats']:.3f}",
                    f"{gap.mean():+.3f} ± {error:.3f}",
                ]
            )
    return {
        "title": "Held-out text",
        "heads": ["", "layers a token", "nats a token", "nats above all layers"],
        "lines": lines,
        "notes": [
            "The beginning of each row votes; the tokens behind it take the chosen "
            "layers and are graded. ±: standard error of the paired difference."
        ],
    }


def trials(
    config: Any, folder: pathlib.Path, lm: Any, draft: Any = None
) -> Iterator[Trial]:
    """Prepare the training of routers, and of the target under them."""
    training = layer_router_run.Training(config, folder, lm)
    price, routers = float(config.sparsities[0]), training.first()
    train = lambda: training.route(price).params
    yield Trial("routers", routers, train, training.grade, training.folder(price, 1))
    if config.adapt.rank:
        yield Trial(
            "changes of the target",
            training.unchanged(),
            lambda: training.adapt(price, routers).params,
            lambda changes: training.grade(routers, changes),
            training.folder(price, 2),
        )


STAGE = Stage(run, "Layer routers for {}", parts=("trained",), trials=trials)
