"""Run several processes of one command on this machine; if one fails, end all."""

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from training import command_line
from training.loop.preemption import REQUEUE

ROOT = Path(__file__).parents[2]  # the folder of the packages, for the children
PATIENCE = 30.0  # seconds that the others have to end once one has failed


def environment(
    process: int, processes: int, devices: int, port: int
) -> dict[str, str]:
    """Build the environment variables of a process.

    `devices` is the number of virtual CPU devices of each; 0: the machine's devices.
    Several processes communicate by gloo on `port`.
    """
    variables: dict[str, str] = {}
    if devices:
        variables |= {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices)}
    if processes > 1:
        variables |= {
            "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
            "JAX_COORDINATOR_ADDRESS": f"localhost:{port}",
            "JAX_NUM_PROCESSES": str(processes),
            "JAX_PROCESS_ID": str(process),
        }
    return variables


def described(arguments: Sequence[str], processes: int, devices: int) -> list[str]:
    """Format the commands for a shell, with PORT in place of a free port."""
    command = ["python", "-m", "experiments.run", *arguments]
    lines = []
    for i in range(processes):
        variables = environment(i, processes, devices, 0)
        words = [f"{n}={v}".replace(":0", ":PORT") for n, v in variables.items()]
        lines.append(" ".join([*words, shlex.join(command)]))
    return lines


def run(
    arguments: Sequence[str],
    processes: int = 1,
    devices: int = 0,
    module: str = "experiments.run",
    logs: Sequence[str] = (),
) -> int:
    """Run all processes to the end, and return an exit status.

    SIGTERM is passed on. After Ctrl-C the processes get SIGTERM, so that a training
    saves, and KeyboardInterrupt is raised once they have ended; a second Ctrl-C kills
    them. If one process fails, the others are ended: a collective would wait for it
    forever.

    Args:
        arguments: of the command.
        processes: number of processes.
        devices: virtual CPU devices of each; 0: the machine's devices.
        module: the command's module.
        logs: a file for the output of each process but the first, which has the
            terminal; (): all have it.

    Returns:
        0; 75 (start again) after SIGTERM; or the status of the first failure.
    """
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    path = os.pathsep.join(p for p in (str(ROOT), os.environ.get("PYTHONPATH")) if p)
    command = [sys.executable, "-m", module, *arguments]
    told = {**os.environ, "PYTHONPATH": path, command_line.LAUNCHED: "1"}
    children = []
    with contextlib.ExitStack() as files, _ignored(signal.SIGINT):
        # A terminal sends Ctrl-C to them as well, but this process passes it on.
        for i in range(processes):
            output = None
            if i and logs:
                Path(logs[i - 1]).parent.mkdir(parents=True, exist_ok=True)
                output = files.enter_context(open(logs[i - 1], "a"))
            variables = {**told, **environment(i, processes, devices, port)}
            children.append(
                subprocess.Popen(command, env=variables, stdout=output, stderr=output)
            )

    def forward(number: int, frame: object) -> None:
        for child in children:
            child.send_signal(signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, forward)
    try:
        return _wait(children)
    except KeyboardInterrupt:
        forward(signal.SIGINT, None)
        _grace(children)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
        for child in children:
            if child.poll() is None:
                child.kill()
            child.wait()


@contextlib.contextmanager
def _ignored(number: int) -> Iterator[None]:
    """Ignore a signal; processes that are started now ignore it for good."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(number, before)


def _wait(children: Sequence[subprocess.Popen]) -> int:
    """Wait for all processes; end the others when one fails. Return a status."""
    status, since = 0, 0.0
    while True:
        codes = [child.poll() for child in children]
        failed = [c for c in codes if c]
        if failed and not since:
            since = time.monotonic()
            # A signal's number is no exit status; 75 means restart, not failure.
            status = 1 if failed[0] < 0 else failed[0]
            if status != REQUEUE and None in codes:
                process = codes.index(failed[0])
                sys.stderr.write(
                    f"process {process} ended with {failed[0]}: ending the others\n"
                )
        if None not in codes:
            return status
        if since and time.monotonic() - since > (0 if status != REQUEUE else PATIENCE):
            for child in children:
                child.terminate()
            _grace(children)
            return status
        time.sleep(0.05)


def _grace(children: Sequence[subprocess.Popen]) -> None:
    """Wait for processes to end, and kill those that take over `PATIENCE`."""
    until = time.monotonic() + PATIENCE
    for child in children:
        try:
            child.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
