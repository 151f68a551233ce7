"""Run a recipe: `python -m experiments.run --config=configs/quickstart.py --workdir=W`.

Writes W/{config.json, report.json, report.md, report.html, figures/*.png,
metrics.jsonl}. Fields are overridden with --config.field=value. Every finished piece is
kept in W: the same command again goes on where the last one stopped. SIGTERM saves and
ends with status 75, which asks to be started again. Several processes run the same
command: see experiments/launch/join.py.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags
from ml_collections import ConfigDict

from experiments import console
from experiments.launch import join
from experiments.recipes import defaults, settings
from experiments.reporting import report
from experiments.run_folder import Store
from experiments.studies import evaluate
from models.errors import ConfigError, DecodaxError
from training.loop import preemption

USAGE = (
    "usage: python -m experiments.run --config=FILE --workdir=FOLDER "
    "[--config.field=value ...]"
)


def run(
    config: ConfigDict, workdir: str, command: Sequence[str] = ()
) -> dict[str, Any]:
    """Run the stage that `config` names; its report, {} where it has another form."""
    stage = config.get("stage", "evaluate")
    store = Store(workdir)
    # Imported here: a stage loads nothing that another one needs.
    if stage == "train_lm":
        from training.runs import language_model_run

        store.claim(config)
        language_model_run.run(config, str(store.path))
        return {}
    if stage == "kernels":
        from experiments.studies.kernels import tpu_compilation

        store.claim(config)
        return tpu_compilation.run(config, store, list(command))
    if stage == "cache_features":
        from experiments.trainings import draft_heads

        store.claim(config, draft_heads.SELECTION)
        draft_heads.cache(config, store)
        return {}
    found = _found(stage, config, store)
    found["commands"] = [" ".join(command)] if command else []
    return report.write(store, settings.plain(config), found)


def _found(stage: str, config: ConfigDict, store: Store) -> dict[str, Any]:
    """What a stage measured, for the report."""
    if stage == "train_acceptance":
        from experiments.trainings import acceptance_head

        store.claim(config)
        return acceptance_head.run(config, store)
    if stage in ("train_exits", "train_judge"):
        from experiments.trainings import judge

        store.claim(config)
        return (judge.judge if stage == "train_judge" else judge.early)(config, store)
    if stage == "train_drafts":
        from experiments.trainings import draft_models

        store.claim(config, draft_models.SELECTION)
        return draft_models.run(config, store)
    if stage == "train_heads":
        from experiments.trainings import draft_heads

        store.claim(config, draft_heads.SELECTION)
        return draft_heads.run(config, store)
    if stage == "scaling_laws":
        from experiments.studies import scaling_laws

        store.claim(config, scaling_laws.SELECTION)
        return scaling_laws.run(config, store)
    if stage == "speed":
        from experiments.studies import synthetic_speed

        store.claim(config, synthetic_speed.SELECTION)
        return synthetic_speed.run(config, store)
    if stage == "prompt_set":
        from experiments.studies import prompt_set

        store.claim(config, prompt_set.SELECTION)
        return prompt_set.run(config, store)
    store.claim(config, defaults.SELECTION)
    if stage == "peers":
        from experiments.studies import hf_transformers

        return hf_transformers.run(config, store)
    if stage == "replay":
        from experiments.studies import replay

        return replay.run(config, store)
    if stage == "budget":
        from experiments.studies import tree_budget

        return tree_budget.run(config, store)
    if stage == "trim_vocabulary":
        from experiments.studies import vocab_trim

        return vocab_trim.run(config, store)
    if stage == "online":
        from experiments.studies import online_draft

        return online_draft.run(config, store)
    if stage == "parallel":
        from experiments.studies import pearl_overlap

        return pearl_overlap.run(config, store)
    if stage == "laws":
        from experiments.studies import verifier_acceptance

        return verifier_acceptance.run(config, store)
    return evaluate.run(config, store)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; a mistake in it is explained in one message."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if "--help" in arguments:
        console.terminal().print(f"{__doc__}\n{USAGE}", markup=False)
        return 0
    values = flags.FlagValues()
    flags.DEFINE_string("workdir", None, "folder of the run", flag_values=values)
    join.define(values)
    try:
        config, rest = settings.resolve(arguments)
        try:
            left = values(["run", *rest])[1:]
        except flags.Error as error:
            raise ConfigError(f"{error}\n{USAGE}") from error
        if left or not values["workdir"].value:
            raise ConfigError(f"missing --workdir, or stray {left}\n{USAGE}")
        workdir = values["workdir"].value
        join.start(values)
        command = ["python -m experiments.run", *arguments]
        with preemption.watch():
            found = run(config, workdir, command)
    except DecodaxError as error:
        console.complain(error)
        return 2
    except preemption.Preempted as notice:
        console.terminal().print(str(notice), markup=False)
        return preemption.REQUEUE
    if found:
        pages = [Path(workdir) / f"report.{form}" for form in ("html", "md")]
        page = next((page for page in pages if page.exists()), workdir)
        console.terminal().print(f"\nreport: {page}", markup=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
