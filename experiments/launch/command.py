"""Start a recipe: here, or as a job for SLURM, GKE (gcluster) or Cloud TPU (gcloud).

python -m experiments.launch --config=configs/quickstart.py \\
    --backend=local --num_processes=2 --devices_per_process=2
python -m experiments.launch --config=configs/heads/eagle.py --workdir=/nfs/eagle \\
    --backend=slurm --nodes=4 --sweep seed=1,2,3 --config.train.rate=1e-4 --dry_run

`local` runs and waits; the others write the exact job files or commands into the
workdir, print them, and, without --dry_run, submit them. Each --sweep FIELD=A,B,C (the
values separated at commas outside brackets) multiplies the points; every point has a
folder of its own below the workdir and `--merge`, which `local` does by itself, writes
one report over all of them. The same command again resumes every point.
"""

import argparse
import itertools
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from experiments import console, run_folder
from experiments.launch import local_processes
from experiments.recipes import settings
from experiments.reporting import sweep
from models.errors import ConfigError, DecodaxError
from training.loop.preemption import REQUEUE

BACKENDS = ("local", "slurm", "gcluster", "gcloud")
RESTARTS = 100  # of a preempted job
GRACE = 120  # seconds between SIGTERM and SIGKILL


class Point(NamedTuple):
    """One run: its folder and its command's arguments."""

    name: str  # "" without a sweep
    workdir: str
    arguments: tuple[str, ...]

    @property
    def command(self) -> list[str]:
        return ["python", "-m", "experiments.run", *self.arguments]


class Job(NamedTuple):
    """What is handed to a scheduler: files of the workdir, and lines of bash."""

    files: dict[str, str]
    script: list[str]


def split(values: str) -> list[str]:
    """`values` at the commas that are not inside brackets or quotes."""
    parts, depth, quote = [""], 0, ""
    for c in values:
        if quote or c in "\"'":
            quote = "" if c == quote else quote or c
        elif c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
        if c == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += c
    return parts


def points(config: str, workdir: str, overrides: Sequence[str], sweeps: Sequence[str]):
    """The runs of a command line, each checked against the recipe."""
    axes = []
    for text in sweeps:
        name = text.removeprefix("--").removeprefix("config.")
        field, sep, values = name.partition("=")
        found = split(values)
        if not sep or not field or not all(found):
            raise ConfigError(f"--sweep {text}: write --sweep FIELD=VALUE,VALUE")
        if len(set(found)) < len(found):
            raise ConfigError(f"--sweep {text}: a value stands there twice")
        axes.append([(field, value) for value in found])
    names = [axis[0][0] for axis in axes]
    if len(set(names)) < len(names):
        raise ConfigError(f"--sweep: a field is there twice in {names}")
    made = []
    for chosen in itertools.product(*axes):
        name = ",".join(f"{f}={v}" for f, v in chosen)
        safe = "".join(c if c.isalnum() or c in "=.,_-" else "_" for c in name)
        own = [*overrides, *(f"--config.{f}={v}" for f, v in chosen)]
        settings.resolve([f"--config={config}", *own])
        folder = f"{workdir.rstrip('/')}/{safe}" if safe else workdir
        given = (f"--config={config}", f"--workdir={folder}", *own)
        made.append(Point(safe, folder, given))
    folders = [p.workdir for p in made]
    if len(set(folders)) < len(folders):
        raise ConfigError(f"--sweep: two points share a folder in {folders}")
    return made


def slurm(runs: Sequence[Point], given: argparse.Namespace) -> Job:
    """One array job; jax finds its processes from SLURM's own variables."""
    lines = [
        "#!/bin/bash",
        f"#SBATCH --job-name={given.name}",
        f"#SBATCH --array=0-{len(runs) - 1}",
        f"#SBATCH --nodes={given.nodes}",
        f"#SBATCH --ntasks-per-node={given.tasks_per_node}",
        f"#SBATCH --signal=TERM@{GRACE}",
        "#SBATCH --requeue",
        "#SBATCH --open-mode=append",
        f"#SBATCH --output={given.workdir}/slurm-%A_%a.log",
        *(f"#SBATCH {extra}" for extra in given.extra),
        "",
        "# SIGTERM saves; status 75 asks to be started again.",
        "points=(",
        *(f"  {shlex.quote(shlex.join(p.arguments))}" for p in runs),
        ")",
        'eval "arguments=(${points[$SLURM_ARRAY_TASK_ID]})"',
        'srun --kill-on-bad-exit=1 python -m experiments.run "${arguments[@]}"',
        "status=$?",
        f"if [ $status -eq {REQUEUE} ]; then",
        '  scontrol requeue "${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"',
        "fi",
        "exit $status",
    ]
    file = f"{given.workdir}/job.sbatch"
    return Job({"job.sbatch": "\n".join(lines) + "\n"}, [shlex.join(["sbatch", file])])


def gcluster(runs: Sequence[Point], given: argparse.Namespace) -> Job:
    """One workload a point, submitted by Cluster Toolkit to a GKE cluster."""
    _needs(given, "image", "cluster", "location", "accelerator")
    script = []
    for i, point in enumerate(runs):
        command = [
            "gcluster",
            "job",
            "submit",
            f"--name={_numbered(given.name, i, runs)}",
        ]
        command += [f"--cluster={given.cluster}", f"--location={given.location}"]
        command += [f"--project={given.project}"] if given.project else []
        command += [f"--compute-type={given.accelerator}"]
        command += [f"--topology={given.topology}"] if given.topology else []
        command += [f"--num-slices={given.slices}", f"--image={given.image}"]
        command += [f"--restarts={RESTARTS}", f"--restart-on-exit-codes={REQUEUE}"]
        command += [f"--grace-period={GRACE}s", *given.extra]
        command += [f"--command={shlex.join(point.command)}"]
        script.append(shlex.join(command))
    return Job({}, script)


def gcloud(runs: Sequence[Point], given: argparse.Namespace) -> Job:
    """A TPU slice from the queue for every point, and the command on all its hosts."""
    _needs(given, "location", "accelerator", "runtime")
    if "7x" in given.accelerator:
        raise ConfigError(
            f"--accelerator={given.accelerator}: gcloud's tpu-vm does not offer TPU7x; "
            "use --backend=gcluster"
        )
    where = [f"--zone={given.location}"]
    where += [f"--project={given.project}"] if given.project else []
    kind = f"--accelerator-type={given.accelerator}"
    tpu = ["gcloud", "compute", "tpus"]
    script = ["set -e"]
    for i, point in enumerate(runs):
        name = _numbered(given.name, i, runs)
        queued = [*tpu, "queued-resources"]
        describe = shlex.join([*queued, "describe", name, *where])
        create = [*queued, "create", name, f"--node-id={name}", *where, kind]
        create += [f"--runtime-version={given.runtime}", *given.extra]
        once = shlex.join(point.command)
        again = f"until {once}; do [ $? -eq {REQUEUE} ] || exit 1; done"
        inside = f"cd {shlex.quote(given.directory)} && {again}"
        ssh = [*tpu, "tpu-vm", "ssh", name, *where, "--worker=all"]
        script += [
            "(",
            f"  {describe} > /dev/null 2>&1 || {shlex.join(create)}",
            f"  until state=$({describe} --format='value(state.state)') &&",
            '        [ "$state" = ACTIVE ]; do',
            "    case $state in FAILED | SUSPENDED) echo $state; exit 1 ;; esac",
            "    sleep 30",
            "  done",
            f"  {shlex.join([*ssh, f'--command={inside}'])}",
            ") &",
        ]
    return Job({}, [*script, "wait"])


def _numbered(name: str, i: int, runs: Sequence[Point]) -> str:
    return name if len(runs) == 1 else f"{name}-{i}"


def _needs(given: argparse.Namespace, *names: str) -> None:
    missing = [f"--{name}" for name in names if not getattr(given, name)]
    if missing:
        raise ConfigError(f"--backend={given.backend} needs {', '.join(missing)}")


MAKERS = {"slurm": slurm, "gcluster": gcluster, "gcloud": gcloud}


def parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """The flags, and the overrides `--config.field=value`."""
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
    given = parser.parse_args([a for a in arguments if a not in overrides])
    for name in ("num_processes", "nodes", "tasks_per_node", "slices"):
        if getattr(given, name) < 1:
            raise ConfigError(f"--{name}={getattr(given, name)}: use at least 1")
    if given.devices_per_process < 0:
        raise ConfigError(f"--devices_per_process={given.devices_per_process}: below 0")
    recipe = Path(given.config).stem
    given.workdir = given.workdir or f"runs/{recipe}"
    given.name = given.name or recipe.replace("_", "-")
    return given, overrides


def launch(arguments: Sequence[str]) -> int:
    given, overrides = parse(arguments)
    out = console.terminal()
    runs = points(given.config, given.workdir, overrides, given.sweep)
    if given.merge:
        sweep.write(given.workdir, [(p.name, p.workdir) for p in runs])
        return 0
    if given.backend == "local":
        sizes = given.num_processes, given.devices_per_process
        if given.dry_run:
            for point in runs:
                for line in local_processes.described(point.arguments, *sizes):
                    out.print(line, markup=False, soft_wrap=True, highlight=False)
            return 0
        for point in runs:
            status = local_processes.run(point.arguments, *sizes)
            if status:
                return status
        if given.sweep:
            sweep.write(given.workdir, [(p.name, p.workdir) for p in runs])
        return 0
    job = MAKERS[given.backend](runs, given)
    script = "\n".join(["#!/bin/bash", *job.script, ""])
    for name, text in {**job.files, "submit.sh": script}.items():
        run_folder.text(Path(given.workdir) / name, text)
        out.print(f"# {given.workdir}/{name}", markup=False, soft_wrap=True)
        out.print(text, markup=False, soft_wrap=True, highlight=False)
    if given.dry_run:
        return 0
    program = {"slurm": "sbatch"}.get(given.backend, given.backend)
    if shutil.which(program) is None:
        raise ConfigError(
            f"{program} is not installed here: run {given.workdir}/submit.sh "
            "where it is"
        )
    return subprocess.run(["bash", f"{given.workdir}/submit.sh"]).returncode


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; a mistake in it is explained in one message."""
    try:
        return launch(list(sys.argv[1:] if arguments is None else arguments))
    except DecodaxError as error:
        console.complain(error)
        return 2
