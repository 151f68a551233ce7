"""Start a recipe: here, or as a job for SLURM, GKE (gcluster) or Cloud TPU (gcloud).

python -m experiments.launch --config=configs/quickstart.py \\
    --backend=local --num_processes=2 --devices_per_process=2
python -m experiments.launch --config=configs/heads/eagle.py --workdir=/nfs/eagle \\
    --backend=slurm --nodes=4 --sweep seed=1,2,3 --config.train.rate=1e-4 --dry_run

`local` runs and waits. The others write job files or commands into the workdir, print
them, and, without --dry_run, submit them. A job changes to --directory, runs the lines
of --setup (modules, a virtual environment), takes over the variables DECODAX_* of this
shell, and is ended after --time. Each --sweep FIELD=A,B,C (values separated by commas
outside brackets) multiplies the points; every point has a folder below the workdir.
`--merge` writes one report over all points; `local` does so by itself. The same command
again resumes every point.
"""

import argparse
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from experiments import console, run_folder
from experiments.launch import local_processes, schedulers, sweep
from experiments.recipes import command_fields, settings
from experiments.reporting import sweep_report
from models import storage
from models.errors import ConfigError
from training import command_line
from training.loop import preemption

MODULE = "experiments.launch"
BACKENDS = ("local", *schedulers.JOBS)


def parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Split a command line into flags and overrides `--config.field=value`."""
    parser = command_line.Parser(MODULE, __doc__)
    command_fields.define(parser)
    add = parser.add_argument
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
    accelerator = "gcluster, gcloud: v5litepod-16, ...; slurm: a kind of GPU"
    add("--accelerator", default="", help=accelerator)
    gpus = "slurm: by default one for each task of the node; 0: none"
    add("--gpus_per_node", type=int, default=None, help=gpus)
    add("--topology", default="", help="gcluster: 4x4, ...")
    add("--slices", type=int, default=1, help="gcluster")
    add("--runtime", default="", help="gcloud: the TPU VM's software version")
    directory = "the checkout where the job runs; by default: slurm: this folder, "
    directory += "gcloud: decodax, gcluster: the image's own"
    add("--directory", default="", help=directory)
    setup = "a line of bash that the job runs first: 'module load cuda'; repeatable; "
    setup += "by default slurm activates the virtual environment that is active here"
    add("--setup", action="append", default=[], help=setup)
    time = "after which the job gets SIGTERM: [days-]hours:minutes:seconds"
    add("--time", default="1-00:00:00", help=f"{time}; default 1-00:00:00")
    overrides = [a for a in arguments if a.startswith("--config.")]
    flags = parser.read([a for a in arguments if a not in overrides])
    if not flags.config:
        raise ConfigError(settings.NO_CONFIG)
    for name in ("num_processes", "nodes", "tasks_per_node", "slices"):
        if getattr(flags, name) < 1:
            raise ConfigError(f"--{name}={getattr(flags, name)}: use at least 1")
    if flags.devices_per_process < 0:
        raise ConfigError(
            f"--devices_per_process={flags.devices_per_process}: use 0 or more"
        )
    if flags.gpus_per_node is None:
        flags.gpus_per_node = flags.tasks_per_node
    if flags.gpus_per_node < 0:
        raise ConfigError(f"--gpus_per_node={flags.gpus_per_node}: use 0 or more")
    schedulers.seconds(flags.time)
    recipe = Path(flags.config).stem
    flags.workdir = flags.workdir or f"runs/{recipe}"
    # Job files and logs are this machine's also where the run is in a bucket.
    bucket = storage.remote(storage.path(flags.workdir))
    flags.scripts = f"runs/{recipe}" if bucket else flags.workdir
    flags.name = flags.name or recipe.replace("_", "-")
    return flags, overrides


def launch(arguments: list[str]) -> int:
    """Start, write or merge the runs of a command line; return its exit status."""
    flags, overrides = parse(arguments)
    out = console.terminal()
    if flags.list_fields:
        config, _ = settings.resolve([f"--config={flags.config}", *overrides])
        command_fields.show(flags.config, config)
        return 0
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
        for line in outputs(flags, runs):
            out.print(line, markup=False, soft_wrap=True, highlight=False)
        for point in runs:
            logs = _logs(flags, point)
            status = local_processes.run(point.arguments, *sizes, logs=logs)
            if status == preemption.REQUEUE:
                raise preemption.Preempted("SIGTERM: finished files are kept")
            if status:
                return status
        if flags.sweep:
            sweep_report.write(flags.workdir, [(p.name, p.workdir) for p in runs])
            page = f"report over all points: {flags.workdir}/report.html"
            out.print(page, markup=False, soft_wrap=True, highlight=False)
        return 0
    job = schedulers.JOBS[flags.backend](runs, flags)
    script = "\n".join(["#!/bin/bash", *job.script, ""])
    for name, text in {**job.files, "submit.sh": script}.items():
        run_folder.text(storage.path(flags.scripts) / name, text)
        out.print(f"# {flags.scripts}/{name}", markup=False, soft_wrap=True)
        out.print(text, markup=False, soft_wrap=True, highlight=False)
    for line in outputs(flags, runs):
        out.print(line, markup=False, soft_wrap=True, highlight=False)
    if flags.dry_run:
        return 0
    program = {"slurm": "sbatch"}.get(flags.backend, flags.backend)
    if shutil.which(program) is None:
        raise ConfigError(
            f"{program} is not installed here: run {flags.scripts}/submit.sh "
            "where it is"
        )
    return subprocess.run(["bash", f"{flags.scripts}/submit.sh"]).returncode


def outputs(flags: argparse.Namespace, runs: Sequence[sweep.Point]) -> list[str]:
    """List where every point's folder, page and logs will be."""
    lines = []
    for i, point in enumerate(runs):
        logs = f"{flags.scripts}/slurm-JOB_{i}.log"
        if flags.backend == "local":
            others = ", ".join(_logs(flags, point))
            logs = f"this terminal{others and ', ' + others}"
        elif flags.backend == "gcluster":
            logs = "kubectl logs of the job's pods"
        elif flags.backend == "gcloud":
            logs = f"{flags.scripts}/{schedulers.numbered(flags.name, i, runs)}.log"
        lines.append(
            f"# {point.name or flags.name}: folder {point.workdir}, "
            f"page {point.workdir}/report.html, log {logs}"
        )
    if len(runs) > 1:
        later = "" if flags.backend == "local" else ", written by --merge"
        lines.append(f"# all points: page {flags.workdir}/report.html{later}")
    return lines


def _logs(flags: argparse.Namespace, point: sweep.Point) -> list[str]:
    """Name the files for the output of the processes that have no terminal."""
    folder = flags.scripts + point.workdir.removeprefix(flags.workdir.rstrip("/"))
    others = range(1, flags.num_processes)
    return [f"{folder}/logs/process{i}.log" for i in others]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; one message explains a mistake in it."""
    return command_line.call(MODULE, launch, arguments, resumes=True)
