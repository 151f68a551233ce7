"""Run a recipe: `python -m experiments.run --config=configs/quickstart.py --workdir=W`.

Writes W/{config.json, report.json, report.md, report.html, figures/*.png,
metrics.jsonl}. Override fields with --config.field=value. Every finished piece is
stored in W, so the same command resumes after a kill. On SIGTERM the run saves and
exits with status 75, which means: start the command again. Several processes run the
same command: see experiments/launch/join.py.
"""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags
from ml_collections import ConfigDict

from experiments import console, stage
from experiments.launch import join
from experiments.recipes import settings
from experiments.reporting import report
from experiments.run_folder import RunFolder
from models.errors import ConfigError, DecodaxError
from training.loop import preemption

USAGE = (
    "usage: python -m experiments.run --config=FILE --workdir=FOLDER "
    "[--config.field=value ...]"
)


def run(
    config: ConfigDict, workdir: str, command: Sequence[str] = ()
) -> dict[str, Any]:
    """Run the stage that `config` names; return its report, {} if it has none."""
    recipe_stage = stage.find(config.get("stage", "evaluate"))
    store = RunFolder(workdir)
    store.claim(config, recipe_stage.resumable_fields)
    measurements = recipe_stage.run(config, store)
    if not measurements:
        return {}
    measurements["commands"] = [shlex.join(command)] if command else []
    write = recipe_stage.write or report.write
    return write(store, settings.plain(config), measurements)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; one message explains a mistake in it."""
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
            stray = values(["run", *rest])[1:]
        except flags.Error as error:
            raise ConfigError(f"{error}\n{USAGE}") from error
        if stray or not values["workdir"].value:
            raise ConfigError(f"missing --workdir, or stray {stray}\n{USAGE}")
        workdir = values["workdir"].value
        join.start(values)
        command = ["python", "-m", "experiments.run", *arguments]
        with preemption.watch():
            report_data = run(config, workdir, command)
    except DecodaxError as error:
        console.complain(error)
        return 2
    except preemption.Preempted as notice:
        console.terminal().print(str(notice), markup=False)
        return preemption.REQUEUE
    if report_data:
        pages = [Path(workdir) / f"report.{form}" for form in ("html", "md")]
        page = next((page for page in pages if page.exists()), workdir)
        console.terminal().print(f"\nreport: {page}", markup=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
