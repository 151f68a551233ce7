"""The stage `acceptance_head`: an acceptance head, its calibration and its cost."""

import pathlib
from collections.abc import Iterator
from typing import Any

from experiments import console
from experiments.measurement import draft_call_cost
from experiments.run_folder import RunFolder
from experiments.stage import Stage, Trial
from experiments.studies import common
from models.distributed import processes
from training.evaluation import calibration
from training.runs import acceptance_run, scaffold

OWN, OTHERS = "h", ("fixed", "confidence")
SAID = {
    "h": "the head's threshold",
    "fixed": "the best fixed length",
    "confidence": "a confidence stop",
}


def run(
    config: Any, folder: RunFolder, lm: Any = None, own: Any = None
) -> dict[str, Any]:
    """Train and measure missing pieces, and return all of them."""
    common.provenance(folder)
    file = folder.path / "figures.json"
    if not processes.agreed(file.exists()):
        acceptance_run.run(config, folder.path, lm, own)
    trained = scaffold.read_figures(folder.path)
    bins = {
        name: calibration.Bins(**trained["calibration"][key])
        for name, key in (("as trained", "raw"), ("weight undone", "unweighted"))
    }
    rows = draft_call_cost.compared(
        trained["calls"], config.evaluate.costs, OWN, OTHERS
    )
    trained["prices"] = rows
    priced = draft_call_cost.table(rows, OWN, SAID)
    console.terminal().print("\n".join(priced["notes"]), markup=False)
    curves = [calibration.plot(name, bin_counts) for name, bin_counts in bins.items()]
    return common.study(
        folder,
        trained=trained,
        tables=[_about(trained), priced, calibration.table(bins)],
        plots=[draft_call_cost.plot(rows, OWN, SAID), *curves],
    )


def _about(trained: dict[str, Any]) -> dict[str, Any]:
    """Make the report's table of the training."""
    cells = [
        f"{trained['parameters']}",
        f"{trained['seen_tokens']}",
        f"{trained['seconds']:.0f}",
        f"{100 * trained['accepted']:.1f} %",
    ]
    return {
        "title": "Training",
        "heads": ["parameters", "tokens", "seconds", "held-out drafts accepted"],
        "lines": [cells],
        "notes": [
            "*weight undone*: the loss weighs rejections, so that the head says less "
            "than the chance of acceptance; solved for it."
        ],
    }


def trials(config: Any, folder: pathlib.Path, lm: Any, draft: Any) -> Iterator[Trial]:
    """Prepare the head's training; its chains decode at the recipe's thresholds."""
    training = acceptance_run.Training(config, folder, lm, draft)
    train = lambda: training.fit().params
    yield Trial("acceptance head", training.first(), train, training.priced, folder)


STAGE = Stage(
    run,
    "Drafts for {} that end where a head says",
    parts=("trained",),
    trials=trials,
)
