"""The stage `judge`: a judge of drafts beside the training-free divergence rule.

The report has the judge's gain, the distance of its text from the target's, and the
rule's gain at the same distance.
"""

import pathlib
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp

import decoding
from experiments.run_folder import RunFolder
from experiments.stage import Stage, Trial
from experiments.trainings import lossy_quality_tables
from models.distributed import processes
from training.data import documents
from training.evaluation import calibration
from training.objectives.predictors import judge
from training.runs import judge_run, scaffold


def run(config: Any, folder: RunFolder, lm: Any = None, own: Any = None) -> dict:
    """Train a judge if none is stored, and compare it with the training-free rule."""
    if not processes.agreed((folder.path / "figures.json").exists()):
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


def trials(config: Any, folder: pathlib.Path, lm: Any, draft: Any) -> Iterator[Trial]:
    """Label mismatches, and prepare the judge's fit, which has no optimiser.

    What random models write meets nowhere, so every other label is set to harmless.
    """
    c, e = config.data, config.evaluate
    texts, _ = scaffold.both_splits(config, lm, folder)
    sizes = (c.prompts, c.prompt_tokens, c.new_tokens)
    prompts = documents.requests(lm, texts, *sizes, config.seed)
    limits = (c.new_tokens, c.horizon, c.most, config.seed)
    cases = judge.cases(lm, draft, prompts, *limits, batch=c.batch)
    states = judge.states(lm, [case.tokens for case in cases], c.batch)
    good = [i % 2 > 0 for i in range(len(cases))]
    method = judge_run.rules(e)[f"judge {e.thresholds[0]:g}"]

    def decode(params: Any) -> Any:
        return decoding.generate(
            lm,
            prompts[: e.prompts],
            method,
            max_new_tokens=e.new_tokens,
            temperature=e.temperature,
            drafts={"draft": draft, "judge": params},
            width="paper",
        )

    first = {"weight": jnp.zeros(states.shape[1]), "bias": jnp.zeros(())}
    train = lambda: judge.fit(states, good, config.reject, config.decay)
    yield Trial("judge", first, train, decode, folder, optimised=False)


STAGE = Stage(run, "A judge of drafts for {}", parts=("trained",), trials=trials)
