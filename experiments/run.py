"""Run a recipe: `python -m experiments.run --config=configs/quickstart.py --workdir=W`.

Writes W/{config.json, report.json, report.md, report.html, figures/*.png,
metrics.jsonl}. Override fields with --config.field=value; --list_fields prints them.
Every finished piece is stored in W, so the same command resumes after a kill. Ctrl-C
prints that command. On SIGTERM the run saves and exits with status 75, which means:
start the command again. Several processes run the same command: see
experiments/launch/join.py.
"""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from experiments import console, stage
from experiments.launch import join
from experiments.recipes import command_fields, settings
from experiments.reporting import report
from experiments.run_folder import RunFolder
from models import cpu_host, storage
from models.errors import ConfigError
from training import command_line
from training.loop import preemption

MODULE = "experiments.run"


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


def body(arguments: list[str]) -> int:
    """Run the recipe of a command line."""
    parser = command_line.Parser(MODULE, __doc__)
    parser.add_argument("--workdir", help="folder of the run")
    join.define(parser)
    options, config = command_fields.read(parser, arguments)
    if not options.workdir:
        name = Path(options.config).stem
        raise ConfigError(f"no --workdir: give a folder, e.g. --workdir=runs/{name}")
    cpu_host.settle()
    join.start(options)
    command = command_line.words(MODULE, arguments)
    with preemption.watch():
        report_data = run(config, options.workdir, command)
    if report_data:
        pages = [
            storage.path(options.workdir) / f"report.{form}" for form in ("html", "md")
        ]
        page = next((page for page in pages if page.exists()), options.workdir)
        console.terminal().print(f"\nreport: {page}", markup=False, soft_wrap=True)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; one message explains a mistake in it."""
    return command_line.call(MODULE, body, arguments, resumes=True)


if __name__ == "__main__":
    sys.exit(main())
