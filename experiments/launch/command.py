"""Start a recipe: here, or as a job for SLURM, GKE (gcluster) or Cloud TPU (gcloud).

python -m experiments.launch --config=configs/quickstart.py \\
    --backend=local --num_processes=2 --devices_per_process=2
python -m experiments.launch --config=configs/heads/eagle.py --workdir=/nfs/eagle \\
    --backend=slurm --nodes=4 --sweep seed=1,2,3 --config.train.rate=1e-4 --dry_run

`local` runs and waits. The others write job files or commands into the workdir, print
them, and, without --dry_run, submit them. Each --sweep FIELD=A,B,C (values separated by
commas outside brackets) multiplies the points; every point has a folder below the
workdir. `--merge` writes one report over all points; `local` does so by itself. The
same command again resumes every point.
"""

import argparse
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments import console, run_folder
from experiments.launch import local_processes, schedulers, sweep
from experiments.reporting import sweep_report
from models.errors import ConfigError, DecodaxError

BACKENDS = ("local", *schedulers.JOBS)


def parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Split a command line into flags and overrides `--config.field=value`."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.launch",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--config", required=True)
    add("--workdir", default="", help="by default runs/ and the name of the recipe")
    add("--backend", choices=BACKENDS, default="local")
    add("--dry_run", action="store_true", help="write and print, start nothing")
    add("--sweep", action="append", default=[], metavar="FIELD=A,B")
    add("--merge", action="store_true", help="only write the report over all points")
    add("--name", default="", help="of the job; by default the recipe's")
    add("--extra", action="append", default=[], help="a flag of the scheduler's own")
    add("--num_processes", type=int, default=1, help="local: processes a run")
    add("--devices_per_process", type=int, default=0, help="local: virtual devices")
    add("--nodes", type=int, default=1, help="slurm")
    add("--tasks_per_node", type=int, default=1, help="slurm")
    add("--image", default="", help="gcluster: a container with this project")
    add("--cluster", default="", help="gcluster")
    add("--project", default="", help="gcluster, gcloud")
    add("--location", default="", help="gcluster, gcloud: zone or region")
    add("--accelerator", default="", help="gcluster, gcloud: v5litepod-16, ...")
    add("--topology", default="", help="gcluster: 4x4, ...")
    add("--slices", type=int, default=1, help="gcluster")
    add("--runtime", default="", help="gcloud: the TPU VM's software version")
    add("--directory", default="decodax", help="gcloud: the checkout on the hosts")
    overrides = [a for a in arguments if a.startswith("--config.")]
    flags = parser.parse_args([a for a in arguments if a not in overrides])
    for name in ("num_processes", "nodes", "tasks_per_node", "slices"):
        if getattr(flags, name) < 1:
            raise ConfigError(f"--{name}={getattr(flags, name)}: use at least 1")
    if flags.devices_per_process < 0:
        raise ConfigError(
            f"--devices_per_process={flags.devices_per_process}: use 0 or more"
        )
    recipe = Path(flags.config).stem
    flags.workdir = flags.workdir or f"runs/{recipe}"
    flags.name = flags.name or recipe.replace("_", "-")
    return flags, overrides


def launch(arguments: Sequence[str]) -> int:
    """Start, write or merge the runs of a command line; return its exit status."""
    flags, overrides = parse(arguments)
    out = console.terminal()
    runs = sweep.points(flags.config, flags.workdir, overrides, flags.sweep)
    if flags.merge:
        sweep_report.write(flags.workdir, [(p.name, p.workdir) for p in runs])
        return 0
    if flags.backend == "local":
        sizes = flags.num_processes, flags.devices_per_process
        if flags.dry_run:
            for point in runs:
                for line in local_processes.described(point.arguments, *sizes):
                    out.print(line, markup=False, soft_wrap=True, highlight=False)
            return 0
        for point in runs:
            status = local_processes.run(point.arguments, *sizes)
            if status:
                return status
        if flags.sweep:
            sweep_report.write(flags.workdir, [(p.name, p.workdir) for p in runs])
        return 0
    job = schedulers.JOBS[flags.backend](runs, flags)
    script = "\n".join(["#!/bin/bash", *job.script, ""])
    for name, text in {**job.files, "submit.sh": script}.items():
        run_folder.text(Path(flags.workdir) / name, text)
        out.print(f"# {flags.workdir}/{name}", markup=False, soft_wrap=True)
        out.print(text, markup=False, soft_wrap=True, highlight=False)
    if flags.dry_run:
        return 0
    program = {"slurm": "sbatch"}.get(flags.backend, flags.backend)
    if shutil.which(program) is None:
        raise ConfigError(
            f"{program} is not installed here: run {flags.workdir}/submit.sh "
            "where it is"
        )
    return subprocess.run(["bash", f"{flags.workdir}/submit.sh"]).returncode


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; one message explains a mistake in it."""
    try:
        return launch(list(sys.argv[1:] if arguments is None else arguments))
    except DecodaxError as error:
        console.complain(error)
        return 2
