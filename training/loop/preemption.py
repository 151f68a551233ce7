"""SIGTERM and Ctrl-C: save all work, and stop.

SIGTERM exits with the code that requests a restart. `watch` ends the process by
`Preempted` wherever it is; every run keeps its finished files. A training loop has more
to lose: it opens `Notice` instead, calls `reached` after every step, saves, and only
then ends. Several processes use JAX's coordination service, so that all of them stop
after the same step.

Ctrl-C (SIGINT) raises KeyboardInterrupt, in a training loop after the step in work was
saved. A second Ctrl-C does not wait for that.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any, NoReturn

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


STOPS = {Preempted: signal.SIGTERM, KeyboardInterrupt: signal.SIGINT}


@contextlib.contextmanager
def watch() -> Iterator[None]:
    """Raise `Preempted` in the main thread on SIGTERM, where there is one process.

    With several processes each would end by itself; there only training stops in order.

    Python ignores exceptions in `__del__` and in JAX's callback of the garbage
    collector. From there SIGTERM, and SIGINT too, is sent again a moment later.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        raise Preempted("SIGTERM: finished files are kept")

    def ignored(unraisable: Any) -> None:
        number = next(
            (n for kind, n in STOPS.items() if issubclass(unraisable.exc_type, kind)),
            None,
        )
        if number is None:
            return before(unraisable)
        timers.append(threading.Timer(MOMENT, os.kill, (os.getpid(), number)))
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
    """Note SIGTERM and SIGINT while open, and do nothing else about them.

    A process that ignores SIGINT goes on to do so. A second SIGINT is not noted.
    """

    def __init__(self) -> None:
        self.noted: int | None = None  # the signal
        self._interrupt = signal.getsignal(signal.SIGINT)
        self._scope = contextlib.ExitStack()

    def __enter__(self) -> "Notice":
        if jax.process_count() == 1:
            self._scope.enter_context(_handling(self._note))
            if self._interrupt != signal.SIG_IGN:
                self._scope.enter_context(_handling(self._note, signal.SIGINT))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._scope.close()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.noted = number
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, self._interrupt)

    def reached(self, step: int) -> bool:
        """Decide whether to stop after `step`; every process gets the same answer."""
        if jax.process_count() == 1:
            return self.noted is not None
        return multihost_utils.reached_preemption_sync_point(step)

    def leave(self, saved: str) -> NoReturn:
        """Raise what the noted signal asks for; `saved` is the message's end."""
        if self.noted == signal.SIGINT:
            raise KeyboardInterrupt(f"interrupted: {saved}")
        raise Preempted(f"SIGTERM: {saved}")


@contextlib.contextmanager
def _handling(handler: Any, number: int = signal.SIGTERM) -> Iterator[None]:
    """Set `handler` for a signal; only the main thread may set one."""
    if threading.current_thread() is not threading.main_thread():
        name = signal.Signals(number).name
        logging.warning("%s is not watched outside the main thread", name)
        yield
        return
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)
