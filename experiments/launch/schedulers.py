"""Jobs for SLURM, GKE (gcluster) and Cloud TPU (gcloud)."""

import argparse
import os
import re
import shlex
from collections.abc import Sequence
from typing import NamedTuple

from experiments.launch import sweep
from models.errors import ConfigError
from training import command_line
from training.loop.preemption import REQUEUE

RESTARTS = 100  # most restarts of a preempted job
GRACE = 120  # seconds between SIGTERM and SIGKILL


class Job(NamedTuple):
    """A scheduler's input: files of the workdir, and lines of bash."""

    files: dict[str, str]
    script: list[str]


def seconds(time: str) -> int:
    """Convert a time limit, "[days-]hours:minutes:seconds"; ConfigError for another."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+):([0-5]\d):([0-5]\d)", time)
    if match is None:
        raise ConfigError(f"--time={time}: write [days-]hours:minutes:seconds")
    days, hours, minutes, rest = (int(x or 0) for x in match.groups())
    total = ((24 * days + hours) * 60 + minutes) * 60 + rest
    if not total:
        raise ConfigError(f"--time={time}: give the job some time")
    return total


def preparation(flags: argparse.Namespace, directory: str) -> list[str]:
    """Write the lines of bash before a job's command: folder, setup, variables."""
    lines = [f"cd {shlex.quote(directory)} || exit 1"] if directory else []
    environment = os.environ.get("VIRTUAL_ENV")
    lines += flags.setup
    if flags.backend == "slurm" and environment and not flags.setup:
        lines.append(f". {shlex.quote(environment)}/bin/activate")
    return lines + [
        f"export {name}={shlex.quote(value)}"
        for name, value in sorted(os.environ.items())
        if name.startswith("DECODAX_") and name != command_line.LAUNCHED
    ]


def limited(point: sweep.Point, flags: argparse.Namespace) -> str:
    """Write a point's command for bash, with SIGTERM after the time limit."""
    limit = [
        "timeout",
        "--signal=TERM",
        f"--kill-after={GRACE}",
        f"{seconds(flags.time)}",
    ]
    return shlex.join([*limit, *point.command])


def slurm(runs: Sequence[sweep.Point], flags: argparse.Namespace) -> Job:
    """Write one array job; jax finds its processes from SLURM's variables."""
    lines = [
        "#!/bin/bash",
        f"#SBATCH --job-name={flags.name}",
        f"#SBATCH --array=0-{len(runs) - 1}",
        f"#SBATCH --nodes={flags.nodes}",
        f"#SBATCH --ntasks-per-node={flags.tasks_per_node}",
        *_gpus(flags),
        f"#SBATCH --time={flags.time}",
        f"#SBATCH --signal=TERM@{GRACE}",
        "#SBATCH --requeue",
        "#SBATCH --open-mode=append",
        f"#SBATCH --output={flags.scripts}/slurm-%A_%a.log",
        *(f"#SBATCH {extra}" for extra in flags.extra),
        "",
        "# The environment: --directory, --setup, and DECODAX_* where it was launched.",
        *preparation(flags, flags.directory or os.getcwd()),
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
    file = f"{flags.scripts}/job.sbatch"
    return Job({"job.sbatch": "\n".join(lines) + "\n"}, [shlex.join(["sbatch", file])])


def gcluster(runs: Sequence[sweep.Point], flags: argparse.Namespace) -> Job:
    """Submit one workload a point to a GKE cluster, by Cluster Toolkit."""
    _needs(flags, "image", "cluster", "location", "accelerator")
    script = []
    for i, point in enumerate(runs):
        command = [
            "gcluster",
            "job",
            "submit",
            f"--name={numbered(flags.name, i, runs)}",
        ]
        command += [f"--cluster={flags.cluster}", f"--location={flags.location}"]
        command += [f"--project={flags.project}"] if flags.project else []
        command += [f"--compute-type={flags.accelerator}"]
        command += [f"--topology={flags.topology}"] if flags.topology else []
        command += [f"--num-slices={flags.slices}", f"--image={flags.image}"]
        command += [f"--restarts={RESTARTS}", f"--restart-on-exit-codes={REQUEUE}"]
        command += [f"--grace-period={GRACE}s", *flags.extra]
        # `exec`: the container's first process gets SIGTERM, and bash keeps it.
        ended = f"exec {limited(point, flags)}"
        inside = "; ".join([*preparation(flags, flags.directory), ended])
        command += [f"--command={shlex.join(['bash', '-c', inside])}"]
        script.append(shlex.join(command))
    return Job({}, script)


def gcloud(runs: Sequence[sweep.Point], flags: argparse.Namespace) -> Job:
    """Queue a TPU slice for every point; run its command on all hosts."""
    _needs(flags, "location", "accelerator", "runtime")
    if "7x" in flags.accelerator:
        raise ConfigError(
            f"--accelerator={flags.accelerator}: gcloud's tpu-vm does not offer TPU7x; "
            "use --backend=gcluster"
        )
    where = [f"--zone={flags.location}"]
    where += [f"--project={flags.project}"] if flags.project else []
    kind = f"--accelerator-type={flags.accelerator}"
    tpu = ["gcloud", "compute", "tpus"]
    script = ["set -e"]
    for i, point in enumerate(runs):
        name = numbered(flags.name, i, runs)
        queued = [*tpu, "queued-resources"]
        describe = shlex.join([*queued, "describe", name, *where])
        create = [*queued, "create", name, f"--node-id={name}", *where, kind]
        create += [f"--runtime-version={flags.runtime}", *flags.extra]
        command = limited(point, flags)
        retried = f"until {command}; do [ $? -eq {REQUEUE} ] || exit 1; done"
        inside = "; ".join([*preparation(flags, flags.directory or "decodax"), retried])
        log = shlex.quote(f"{flags.scripts}/{name}.log")
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
            f") 2>&1 | tee -a {log} &",
        ]
    return Job({}, [*script, "wait"])


def _gpus(flags: argparse.Namespace) -> list[str]:
    """Write the request for GPUs: of the kind that --accelerator names, if any."""
    if not flags.gpus_per_node:
        return []
    kind = f"{flags.accelerator}:" if flags.accelerator else ""
    return [f"#SBATCH --gpus-per-node={kind}{flags.gpus_per_node}"]


def numbered(name: str, i: int, runs: Sequence[sweep.Point]) -> str:
    """Name the job of point `i`."""
    return name if len(runs) == 1 else f"{name}-{i}"


def _needs(flags: argparse.Namespace, *names: str) -> None:
    """Raise ConfigError unless all of these flags are set."""
    missing = [f"--{name}" for name in names if not getattr(flags, name)]
    if missing:
        raise ConfigError(f"--backend={flags.backend} needs {', '.join(missing)}")


JOBS = {"slurm": slurm, "gcluster": gcluster, "gcloud": gcloud}
