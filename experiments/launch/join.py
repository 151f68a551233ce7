"""Join several processes into one program.

JAX recognises TPU hosts, of one slice or several, and a SLURM or Kubernetes job.
Elsewhere flags or environment variables set every process's index:

    --coordinator=host:port  --num_processes=4  --process_id=0
    JAX_COORDINATOR_ADDRESS  JAX_NUM_PROCESSES  JAX_PROCESS_ID

All processes run the same command. Each sends the coordinator a heartbeat every few
seconds. When one dies, the runtime ends the others with a message about it.
"""

import argparse
import os
from typing import Any

import jax
from absl import logging

from models import cpu_host
from models.errors import ConfigError

SILENCE = 30  # seconds without a heartbeat after which a process counts as dead
NAMES = {
    "coordinator": "JAX_COORDINATOR_ADDRESS",
    "num_processes": "JAX_NUM_PROCESSES",
    "process_id": "JAX_PROCESS_ID",
}


def define(parser: argparse.ArgumentParser) -> None:
    """Define the flags of a command that may run in several processes."""
    for name, variable in NAMES.items():
        text = f"of several processes; by default ${variable}"
        parser.add_argument(f"--{name}", default="", help=text)


def start(options: argparse.Namespace) -> None:
    """Join the other processes, if there are any; call it before any computation."""
    flags = vars(options)
    place = {n: flags[n] or os.environ.get(v, "") for n, v in NAMES.items()}
    if not any(place.values()):
        if managed():
            jax.distributed.initialize(heartbeat_timeout_seconds=SILENCE)
        elif "SLURM_JOB_ID" not in os.environ and cpu_host.has_tpu():
            _detected()
        return
    missing = [f"--{n} or {NAMES[n]}" for n, value in place.items() if not value]
    try:
        count, index = int(place["num_processes"]), int(place["process_id"])
    except ValueError:
        count = index = -1
    if missing or not 0 <= index < count:
        raise ConfigError(
            f"several processes need {missing or 'a process_id below num_processes'}: "
            f"got {place}"
        )
    if count == 1:
        return
    try:
        jax.distributed.initialize(
            place["coordinator"], count, index, heartbeat_timeout_seconds=SILENCE
        )
    except RuntimeError as error:
        raise ConfigError(
            f"process {index} of {count} did not meet the others at "
            f"{place['coordinator']}: {error}"
        ) from error


def _detected() -> None:
    """Join by JAX's own detection, where it finds a cluster.

    On a TPU host of Google Cloud it asks the metadata server for the other hosts: no
    variable of the environment tells them.
    """
    try:
        jax.distributed.initialize(heartbeat_timeout_seconds=SILENCE)
    except ValueError as error:  # there is none: JAX misses a coordinator's address
        logging.debug("one process: %s", error)


def managed(environment: Any = os.environ) -> bool:
    """Test whether a launcher that JAX supports started several processes."""
    if int(environment.get("SLURM_NTASKS") or 1) > 1:
        return "SLURM_PROCID" in environment
    if "," in environment.get("TPU_WORKER_HOSTNAMES", ""):
        return True
    if int(environment.get("MEGASCALE_NUM_SLICES") or 1) > 1:
        return True
    return "KUBERNETES_SERVICE_HOST" in environment and (
        "JOB_COMPLETION_INDEX" in environment
    )
