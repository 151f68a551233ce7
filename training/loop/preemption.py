"""SIGTERM: what was begun is saved, and the exit code asks to be started again.

`watch` lets SIGTERM end the process by `Preempted`, wherever it is: every run keeps
what it finished. A training loop, which has more to lose, opens `Notice` instead, asks
`reached` after every step, saves, and only then ends. Several processes ask JAX's own
coordination service, so that all of them stop after the same step.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any

import jax
from absl import logging
from jax.experimental import multihost_utils

REQUEUE = 75  # EX_TEMPFAIL: not an error, try again
MOMENT = 0.05  # seconds after which an ignored signal is sent again


class Preempted(SystemExit):
    """The run was told to stop and can be continued; ends the process with 75.

    No `Exception`: what passes over a bad file must not take this for one.
    """

    def __init__(self, said: str) -> None:
        super().__init__(REQUEUE)
        self.said = said

    def __str__(self) -> str:
        return self.said


@contextlib.contextmanager
def watch() -> Iterator[None]:
    """SIGTERM raises `Preempted` in the main thread, where there is one process.

    Of several each would end by itself; there, training alone stops in order.

    Where Python ignores exceptions (JAX's callback of the garbage collector, any
    `__del__`) it is raised again a moment later.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        raise Preempted("SIGTERM: what is finished is kept; start again to go on")

    def ignored(found: Any) -> None:
        if not issubclass(found.exc_type, Preempted):
            return before(found)
        again.append(threading.Timer(MOMENT, os.kill, (os.getpid(), signal.SIGTERM)))
        again[-1].daemon = True
        again[-1].start()

    if jax.distributed.is_initialized():
        yield
        return
    again: list[threading.Timer] = []
    before, sys.unraisablehook = sys.unraisablehook, ignored
    try:
        with _handling(stop):
            yield
    finally:
        sys.unraisablehook = before
        for timer in again:
            timer.cancel()


class Notice:
    """While open, SIGTERM is noted and nothing else."""

    def __init__(self) -> None:
        self.noted = False
        self._scope = contextlib.ExitStack()

    def __enter__(self) -> "Notice":
        if jax.process_count() == 1:
            self._scope.enter_context(_handling(self._note))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._scope.close()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.noted = True

    def reached(self, step: int) -> bool:
        """Whether to stop after `step`; every process gets the same answer."""
        if jax.process_count() == 1:
            return self.noted
        return multihost_utils.reached_preemption_sync_point(step)


@contextlib.contextmanager
def _handling(handler: object) -> Iterator[None]:
    """`handler` for SIGTERM; only the main thread may set one."""
    if threading.current_thread() is not threading.main_thread():
        logging.warning("SIGTERM is not watched outside the main thread")
        yield
        return
    before = signal.signal(signal.SIGTERM, handler)  # type: ignore[arg-type]
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
