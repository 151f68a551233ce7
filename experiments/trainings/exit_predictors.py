"""The stage `exit_predictors`: predictors of early exits beside training-free rules.

The report has the predictors' gain, the distance of their text from the target's, and
the rules' gain at the same distance.
"""

import pathlib
from collections.abc import Iterator
from typing import Any

from experiments.run_folder import RunFolder
from experiments.stage import Stage, Trial
from experiments.trainings import lossy_quality_tables
from models.distributed import processes
from training.evaluation import calibration
from training.runs import exit_predictor_run


def run(config: Any, folder: RunFolder, lm: Any = None) -> dict:
    """Train exit predictors if none are stored; compare two schedules and two rules."""
    if not processes.agreed((folder.path / "figures.json").exists()):
        exit_predictor_run.run(config, folder.path, lm)
    trained = lossy_quality_tables.read(folder)
    held = trained["held_out"]
    stops = " ".join(f"{100 * x:.1f}" for x in held["stops"])
    about = {
        "title": "Training",
        "heads": [
            "parameters",
            "tokens",
            "seconds",
            "layers right",
            "predictors right",
            "stopped early",
            "of these right",
            "layers taken, from 1",
            "first level",
        ],
        "lines": [
            [
                f"{trained['parameters']}",
                f"{trained['seen_tokens']}",
                f"{trained['seconds']:.0f}",
                *(
                    f"{100 * held[key]:.1f} %"
                    for key in ("right", "hit", "stopped", "kept")
                ),
                f"{stops} %",
                f"{trained['static']}",
            ]
        ],
        "notes": [
            "On held-out text, every layer asked; a layer is right where its answer is "
            "the target's."
        ],
    }
    rows, bins = trained["decoding"], calibration.Bins(**held["calibration"])
    depth = rows["plain"]["layers"]
    passes = lambda each: ([depth * n for n in each["calls"]], each["layers"])
    unit = "tokens a whole pass"
    tables = [about, lossy_quality_tables.table(rows, "layers")]
    for label in ("two levels", "every layer"):
        for base in ("layer", "confidence"):
            tables += lossy_quality_tables.matched(
                rows, label, ("plain", base), passes, unit
            )
    what = "a layer's being right"
    tables.append(calibration.table({"exits": bins}, what))
    return lossy_quality_tables.study(
        folder, trained, tables, [calibration.plot("exits", bins, what)]
    )


def trials(
    config: Any, folder: pathlib.Path, lm: Any, draft: Any = None
) -> Iterator[Trial]:
    """Train EAGLE's layer, and prepare the training of the predictors."""
    training = exit_predictor_run.Training(config, folder, lm)

    def decode(params: Any) -> Any:
        stops = training.held_out(params)["stops"]
        static = exit_predictor_run.frequent(stops, config.static)
        return training.decoded(params, static)

    train = lambda: training.fit().params
    yield Trial("exit predictors", training.first(), train, decode, folder)


STAGE = Stage(run, "Exit predictors for {}", parts=("trained",), trials=trials)
