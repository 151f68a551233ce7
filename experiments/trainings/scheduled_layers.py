"""The stage `scheduled_layers`: a target trained under schedules (SkipDecode).

Its report has the lengths of the fits and the fixed sets; what the changes are worth is
measured by experiments/studies/scheduled_exits.py.
"""

import pathlib
from collections.abc import Iterator
from typing import Any

from experiments.run_folder import RunFolder
from experiments.stage import Stage, Trial
from experiments.trainings import lossy_quality_tables
from models.distributed import processes
from training.runs import scheduled_layers_run


def run(config: Any, folder: RunFolder, lm: Any = None) -> dict:
    """Train changes of the target if none are stored."""
    if not processes.agreed((folder.path / "figures.json").exists()):
        scheduled_layers_run.run(config, folder.path, lm)
    trained = lossy_quality_tables.read(folder)
    return lossy_quality_tables.study(folder, trained, [table(trained)], [])


def table(trained: dict[str, Any]) -> dict[str, Any]:
    """Tabulate the figures of `scheduled_layers_run.run`."""
    lines = []
    for name, row in trained["budgets"].items():
        words = "schedule " + name.replace("_", " to ")
        lines.append([words, str(row["steps"]), str(row["seen_tokens"]), "", ""])
    for count, row in trained["fixed"].items():
        layers = " ".join(map(str, row["set"]))
        nats = (f"{row['nats_before']:.3f}", f"{row['nats_after']:.3f}")
        length = (str(row["steps"]), str(row["seen_tokens"]))
        lines.append([f"fixed {count}: {layers}", *length, *nats])
    return {
        "title": "Training",
        "heads": ["layers", "steps", "tokens", "nats before", "nats after"],
        "lines": lines,
        "notes": ["nats: of held-out tokens behind a row's prompt."],
    }


def trials(
    config: Any, folder: pathlib.Path, lm: Any, draft: Any = None
) -> Iterator[Trial]:
    """Prepare the training under a schedule."""
    training = scheduled_layers_run.Training(config, folder, lm)
    most, least = map(int, config.budgets[0])
    yield Trial(
        "changes of the target",
        training.unchanged(),
        lambda: training.scheduled((most, least)).params,
        lambda changes: training.grade(training.first(), changes),
        training.workdir / f"budget_{most}_{least}",
    )


STAGE = Stage(run, "Scheduled layers for {}", parts=("trained",), trials=trials)
