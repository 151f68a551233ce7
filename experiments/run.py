"""Run a recipe: `python -m experiments.run --config=configs/quickstart.py --workdir=W`.

Writes W/{config.json, report.json, report.md, report.html, figures/*.png,
metrics.jsonl}. Fields are overridden with --config.field=value. Every finished piece is
kept in W: the same command again goes on where the last one stopped. SIGTERM saves and
ends with status 75, which asks to be started again. Several processes run the same
command: see experiments/distributed.py.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags
from ml_collections import ConfigDict

from experiments import console, defaults, distributed, evaluate, report, settings
from experiments.store import Store
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
        from experiments import kernels

        store.claim(config)
        return kernels.run(config, store, list(command))
    if stage == "cache_features":
        from experiments import heads

        store.claim(config, heads.SELECTION)
        heads.cache(config, store)
        return {}
    found = _found(stage, config, store)
    found["commands"] = [" ".join(command)] if command else []
    return report.write(store, settings.plain(config), found)


def _found(stage: str, config: ConfigDict, store: Store) -> dict[str, Any]:
    """What a stage measured, for the report."""
    if stage == "train_acceptance":
        from experiments import acceptance

        store.claim(config)
        return acceptance.run(config, store)
    if stage in ("train_exits", "train_judge"):
        from experiments import lossy

        store.claim(config)
        return (lossy.judge if stage == "train_judge" else lossy.early)(config, store)
    if stage == "train_drafts":
        from experiments import drafts

        store.claim(config, drafts.SELECTION)
        return drafts.run(config, store)
    if stage == "train_heads":
        from experiments import heads

        store.claim(config, heads.SELECTION)
        return heads.run(config, store)
    if stage == "scaling_laws":
        from experiments import scaling_laws

        store.claim(config, scaling_laws.SELECTION)
        return scaling_laws.run(config, store)
    if stage == "speed":
        from experiments import speed

        store.claim(config, speed.SELECTION)
        return speed.run(config, store)
    if stage == "prompt_set":
        from experiments import prompt_set

        store.claim(config, prompt_set.SELECTION)
        return prompt_set.run(config, store)
    store.claim(config, defaults.SELECTION)
    if stage == "peers":
        from experiments import peers

        return peers.run(config, store)
    if stage == "replay":
        from experiments import replay

        return replay.run(config, store)
    if stage == "budget":
        from experiments import budget

        return budget.run(config, store)
    if stage == "trim_vocabulary":
        from experiments import trims

        return trims.run(config, store)
    if stage == "online":
        from experiments import online

        return online.run(config, store)
    if stage == "parallel":
        from experiments import parallel

        return parallel.run(config, store)
    if stage == "laws":
        from experiments import laws

        return laws.run(config, store)
    return evaluate.run(config, store)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; a mistake in it is explained in one message."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if "--help" in arguments:
        console.terminal().print(f"{__doc__}\n{USAGE}", markup=False)
        return 0
    values = flags.FlagValues()
    flags.DEFINE_string("workdir", None, "folder of the run", flag_values=values)
    distributed.define(values)
    try:
        config, rest = settings.resolve(arguments)
        try:
            left = values(["run", *rest])[1:]
        except flags.Error as error:
            raise ConfigError(f"{error}\n{USAGE}") from error
        if left or not values["workdir"].value:
            raise ConfigError(f"missing --workdir, or stray {left}\n{USAGE}")
        workdir = values["workdir"].value
        distributed.start(values)
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
