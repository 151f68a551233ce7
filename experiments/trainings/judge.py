"""The stage `judge`: a judge of drafts beside the training-free divergence rule.

The report has the judge's gain, the distance of its text from the target's, and the
rule's gain at the same distance.
"""

from typing import Any

from experiments.run_folder import RunFolder
from experiments.stage import Stage
from experiments.trainings import lossy_quality_tables
from training.evaluation import calibration
from training.runs import judge_run


def run(config: Any, folder: RunFolder, lm: Any = None, own: Any = None) -> dict:
    """Train a judge if none is stored, and compare it with the training-free rule."""
    if not (folder.path / "figures.json").exists():
        judge_run.run(config, folder.path, lm, own)
    trained = lossy_quality_tables.read(folder)
    train, held = trained["cases"]
    about = {
        "title": "Training",
        "heads": ["mismatches", "held out", "harmless", "judged right", "always one"],
        "lines": [
            [
                f"{train}",
                f"{held}",
                *(f"{100 * trained[k]:.1f} %" for k in ("good", "accuracy", "guess")),
            ]
        ],
        "notes": ["*always one*: who calls every mismatch by the commoner kind."],
    }
    rows, bins = trained["decoding"], calibration.Bins(**trained["calibration"])
    tables = [about, lossy_quality_tables.table(rows, "tokens_per_call")]
    tables[1]["notes"].append("lot: a judge fitted to the same labels, shuffled.")
    for base in ("kl_threshold", "lot"):
        tables += lossy_quality_tables.matched(
            rows, "judge", ("exact", base), _calls, "tokens/call"
        )
    what = "harmlessness"
    tables.append(calibration.table({"judge": bins}, what))
    return lossy_quality_tables.study(
        folder, trained, tables, [calibration.plot("judge", bins, what)]
    )


def _calls(each: dict[str, Any]) -> tuple[list, list]:
    """Return tokens and calls by prompt; their ratio is tokens per call."""
    return each["new"], each["calls"]


STAGE = Stage(run, "A judge of drafts for {}", parts=("trained",))
