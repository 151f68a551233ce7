"""Processes that call functions within limits: a compiler of others may hang or die."""

import multiprocessing
import os
import pathlib
import signal
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class Outcome(NamedTuple):
    """What a call returned, or the `problem` for which it did not."""

    value: Any
    problem: str = ""


class Worker:
    """A process that calls functions one by one; it is started anew after a death."""

    def __init__(
        self, environment: Mapping[str, str] | None = None, one_core: bool = False
    ) -> None:
        """Prepare a worker, which starts with its first call.

        Args:
            environment: variables of the process beside this one's.
            one_core: whether all its threads share one core.
        """
        self._about = dict(environment or {}), one_core
        self._process: Any = None
        self._connection: Any = None
        self.starts = 0

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def is_running(self) -> bool:
        """Whether the process lives, with what earlier calls left in its memory."""
        return self._process is not None and self._process.is_alive()

    def call(self, limit: float, function: Callable, *arguments: Any) -> Outcome:
        """Call a module's function in the process.

        Args:
            limit: seconds, after which the process is killed.
            function: of a module, so that its name can be sent.
            arguments: picklable.
        """
        if not self.is_running:
            self._start()
        self._connection.send((function, arguments))
        if not self._connection.poll(limit):
            self.close()
            return Outcome(None, f"over {limit:g} s")
        try:
            return Outcome(*self._connection.recv())
        except EOFError:
            self.close()
            return Outcome(None, "the process died")

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        arguments = (theirs, *self._about)
        # A daemon ends with this process, however that ends.
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        theirs.close()
        self.starts += 1

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._connection.close()
        self._process = None


def _serve(connection: Any, environment: Mapping[str, str], one_core: bool) -> None:
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent closes this process
    if one_core and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    while True:
        try:
            function, arguments = connection.recv()
        except EOFError:
            return
        try:
            answer = (function(*arguments), "")
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic of Rust is no Exception
            text = str(error).strip().splitlines()
            answer = (None, f"{type(error).__name__}: {text[0] if text else ''}")
        connection.send(answer)


STATUS, FORGET = pathlib.Path("/proc/self/status"), "/proc/self/clear_refs"


def memory(field: str = "VmRSS") -> float:
    """Return this process's memory in MiB; NaN where Linux's /proc is missing.

    Args:
        field: VmRSS, or VmHWM for the peak since `forget_peak`.
    """
    if STATUS.exists():
        for line in STATUS.read_text().splitlines():
            if line.startswith(field):
                return int(line.split()[1]) / 1024
    return float("nan")


def forget_peak() -> None:
    """Let the peak of memory begin anew; nothing where that is not possible."""
    try:
        pathlib.Path(FORGET).write_text("5")
    except OSError:
        pass
