"""Jobs for SLURM, GKE (gcluster) and Cloud TPU (gcloud)."""

import argparse
import shlex
from collections.abc import Sequence
from typing import NamedTuple

from experiments.launch import sweep
from models.errors import ConfigError
from training.loop.preemption import REQUEUE

RESTARTS = 100  # most restarts of a preempted job
GRACE = 120  # seconds between SIGTERM and SIGKILL


class Job(NamedTuple):
    """A scheduler's input: files of the workdir, and lines of bash."""

    files: dict[str, str]
    script: list[str]


def slurm(runs: Sequence[sweep.Point], flags: argparse.Namespace) -> Job:
    """Write one array job; jax finds its processes from SLURM's variables."""
    lines = [
        "#!/bin/bash",
        f"#SBATCH --job-name={flags.name}",
        f"#SBATCH --array=0-{len(runs) - 1}",
        f"#SBATCH --nodes={flags.nodes}",
        f"#SBATCH --ntasks-per-node={flags.tasks_per_node}",
        f"#SBATCH --signal=TERM@{GRACE}",
        "#SBATCH --requeue",
        "#SBATCH --open-mode=append",
        f"#SBATCH --output={flags.workdir}/slurm-%A_%a.log",
        *(f"#SBATCH {extra}" for extra in flags.extra),
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
    file = f"{flags.workdir}/job.sbatch"
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
            f"--name={_numbered(flags.name, i, runs)}",
        ]
        command += [f"--cluster={flags.cluster}", f"--location={flags.location}"]
        command += [f"--project={flags.project}"] if flags.project else []
        command += [f"--compute-type={flags.accelerator}"]
        command += [f"--topology={flags.topology}"] if flags.topology else []
        command += [f"--num-slices={flags.slices}", f"--image={flags.image}"]
        command += [f"--restarts={RESTARTS}", f"--restart-on-exit-codes={REQUEUE}"]
        command += [f"--grace-period={GRACE}s", *flags.extra]
        command += [f"--command={shlex.join(point.command)}"]
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
        name = _numbered(flags.name, i, runs)
        queued = [*tpu, "queued-resources"]
        describe = shlex.join([*queued, "describe", name, *where])
        create = [*queued, "create", name, f"--node-id={name}", *where, kind]
        create += [f"--runtime-version={flags.runtime}", *flags.extra]
        command = shlex.join(point.command)
        retried = f"until {command}; do [ $? -eq {REQUEUE} ] || exit 1; done"
        inside = f"cd {shlex.quote(flags.directory)} && {retried}"
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


def _numbered(name: str, i: int, runs: Sequence[sweep.Point]) -> str:
    return name if len(runs) == 1 else f"{name}-{i}"


def _needs(flags: argparse.Namespace, *names: str) -> None:
    """Raise ConfigError unless all of these flags are set."""
    missing = [f"--{name}" for name in names if not getattr(flags, name)]
    if missing:
        raise ConfigError(f"--backend={flags.backend} needs {', '.join(missing)}")


JOBS = {"slurm": slurm, "gcluster": gcluster, "gcloud": gcloud}
