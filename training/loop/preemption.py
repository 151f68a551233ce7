"""SIGTERM: save all work, and exit with the code that requests a restart.

`watch` ends the process by `Preempted` wherever it is; every run keeps its finished
files. A training loop has more to lose: it opens `Notice` instead, calls `reached`
after every step, saves, and only then ends. Several processes use JAX's coordination
service, so that all of them stop after the same step.
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
    """The exit of a run that got SIGTERM and can be resumed: status 75.

    No `Exception`: code that skips a bad file must not catch it.
    """

    def __init__(self, said: str) -> None:
        super().__init__(REQUEUE)
        self.said = said

    def __str__(self) -> str:
        return self.said


@contextlib.contextmanager
def watch() -> Iterator[None]:
    """Raise `Preempted` in the main thread on SIGTERM, where there is one process.

    With several processes each would end by itself; there only training stops in order.

    Python ignores exceptions in `__del__` and in JAX's callback of the garbage
    collector. From there SIGTERM is sent again a moment later.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        raise Preempted("SIGTERM: finished files are kept; start again to resume")

    def ignored(unraisable: Any) -> None:
        if not issubclass(unraisable.exc_type, Preempted):
            return before(unraisable)
        timers.append(threading.Timer(MOMENT, os.kill, (os.getpid(), signal.SIGTERM)))
        timers[-1].daemon = True
        timers[-1].start()

    if jax.distributed.is_initialized():
        yield
        return
    timers: list[threading.Timer] = []
    before, sys.unraisablehook = sys.unraisablehook, ignored
    try:
        with _handling(stop):
            yield
    finally:
        sys.unraisablehook = before
        for timer in timers:
            timer.cancel()


class Notice:
    """Note SIGTERM while open, and do nothing else about it."""

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
        """Decide whether to stop after `step`; every process gets the same answer."""
        if jax.process_count() == 1:
            return self.noted
        return multihost_utils.reached_preemption_sync_point(step)


@contextlib.contextmanager
def _handling(handler: object) -> Iterator[None]:
    """Set `handler` for SIGTERM; only the main thread may set one."""
    if threading.current_thread() is not threading.main_thread():
        logging.warning("SIGTERM is not watched outside the main thread")
        yield
        return
    before = signal.signal(signal.SIGTERM, handler)  # type: ignore[arg-type]
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
