"""The stages `train_judge` and `train_exits`: what is trained for methods that change
the text, what they gain, how far the text is from the target's, and whether rules that
need no training gain as much at the same distance."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from experiments import console
from experiments.measurement import equal_quality
from experiments.measurement.equal_quality import Counts
from experiments.run_folder import Store
from experiments.studies import evaluate
from training.evaluation import calibration
from training.runs import exit_predictor_run, judge_run

NOTE = (
    "nats: of the text's tokens under the whole target; it is no measure of use. "
    "tokens before they part: from plain decoding's text."
)
Rows = Mapping[str, dict[str, Any]]


def judge(config: Any, folder: Store, lm: Any = None, own: Any = None) -> dict:
    """A judge and the training-free rule; returns everything."""
    if not (folder.path / "figures.json").exists():
        judge_run.run(config, folder.path, lm, own)
    trained = _read(folder)
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
    tables = [about, _table(rows, "tokens_per_call")]
    tables[1]["notes"].append("lot: a judge fitted to the same labels, shuffled.")
    for base in ("kl_threshold", "lot"):
        tables += _matched(rows, "judge", ("exact", base), _calls, "tokens/call")
    what = "harmlessness"
    tables.append(calibration.table({"judge": bins}, what))
    return _found(folder, trained, tables, [calibration.plot("judge", bins, what)])


def early(config: Any, folder: Store, lm: Any = None) -> dict:
    """Exit predictors, two schedules, and two rules; returns everything."""
    if not (folder.path / "figures.json").exists():
        exit_predictor_run.run(config, folder.path, lm)
    trained = _read(folder)
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
    tables = [about, _table(rows, "layers")]
    for own in ("two levels", "every layer"):
        for base in ("layer", "confidence"):
            tables += _matched(rows, own, ("plain", base), passes, unit)
    what = "a layer's being right"
    tables.append(calibration.table({"exits": bins}, what))
    return _found(folder, trained, tables, [calibration.plot("exits", bins, what)])


def _read(folder: Store) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder.path / "figures.json").read_text())
    return found


def _found(folder: Store, trained: Any, tables: list, plots: list) -> dict[str, Any]:
    evaluate.provenance(folder)
    for made in tables:
        for cells in made["lines"] if "better" in made["heads"] else ():
            said = f"{made['title']}: {' | '.join(cells)}"
            console.terminal().print(said, markup=False)
    return evaluate.study(folder, trained=trained, tables=tables, plots=plots)


def _table(rows: Rows, gain: str) -> dict[str, Any]:
    """The rows of `training.evaluation.lossy_quality`, in the form of the report."""
    heads = ["", gain.replace("_", " "), "nats a token"]
    heads += ["texts as plain's", "tokens before they part"]
    lines = [
        [
            label,
            f"{row[gain]:.2f}",
            f"{row['nats']:.3f}",
            f"{100 * row['same']:.0f} %",
            f"{100 * row['shared']:.0f} %",
        ]
        for label, row in rows.items()
    ]
    return {"title": "Texts", "heads": heads, "lines": lines, "notes": [NOTE]}


def _calls(each: dict[str, Any]) -> tuple[list, list]:
    """Tokens per call, as sums."""
    return each["new"], each["calls"]


def _matched(
    rows: Rows,
    own: str,
    base: tuple[str, str],
    gain: Callable[[dict[str, Any]], tuple[list, list]],
    unit: str,
) -> list[dict[str, Any]]:
    """`own`'s settings against a baseline's, at equal distance from plain's text.

    `base` names the exact row, and what the baseline's rows begin with. Distance is
    the share of tokens after the texts have parted; or nats a token.
    """
    apart = lambda each: (
        [due - same for due, same in zip(each["due"], each["shared"])],
        each["due"],
    )
    worse = lambda each: (each["nats"], each["new"])
    tables = []
    for loss, said in ((apart, "tokens after they part"), (worse, "nats a token")):
        counts = {
            name: Counts(*gain(row["each"]), *loss(row["each"]))
            for name, row in rows.items()
        }
        mine = {n: c for n, c in counts.items() if n.startswith(own)}
        exact, start = base
        others = [c for n, c in counts.items() if n == exact or n.startswith(start)]
        found = equal_quality.against(mine, others)
        title = f"{own} against {start}, equal {said}"
        tables.append(equal_quality.table(title, said, found, unit, start))
    return tables
