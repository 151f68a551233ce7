"""Print progress as lines where output is no terminal: a log file, a scheduler's job.

A line comes every 30 seconds, from a thread of its own, so that one comes while a long
program compiles as well. On a terminal a bar shows the same, and no line is printed.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import TypeVar

EVERY = 30.0  # seconds between two lines
Item = TypeVar("Item")
STORED = 0.05  # a piece of a study that took fewer seconds was stored before


class Clock:
    """Estimate the time left from pieces done; it starts when it is made.

    Pieces that took less than `shortest` seconds are not counted: an earlier run stored
    them.
    """

    def __init__(
        self,
        done: int = 0,
        shortest: float = 0.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._now, self._begun, self._shortest = now, now(), shortest
        self._done, self._last = done, self._begun
        self._pieces, self._seconds = 0, 0.0  # those that were computed now

    def reach(self, done: int) -> None:
        """Note that `done` pieces are done in all."""
        now = self._now()
        if done > self._done and now - self._last >= self._shortest:
            self._pieces += done - self._done
            self._seconds += now - self._last
        self._done, self._last = done, now

    def text(self, total: int) -> str:
        """Write the time so far and, once a piece is done, the time left.

        `total` is the number of pieces; 0: not known.
        """
        spent = f"{span(self._now() - self._begun)} so far"
        if not self._pieces or not total:
            return spent
        left = (total - self._done) * self._seconds / self._pieces
        left -= self._now() - self._last
        if left <= 0:  # this piece takes longer than those before it
            return spent
        return f"{spent}, about {span(left)} left"


class Lines:
    """Print what `describe` returns every `EVERY` seconds, while open.

    It does nothing where stderr is a terminal, or where it is not `wanted`.
    """

    def __init__(self, describe: Callable[[], str], wanted: bool = True) -> None:
        self.describe = describe
        self.wanted = wanted and not sys.stderr.isatty()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._print, daemon=True)

    def __enter__(self) -> "Lines":
        if self.wanted:
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        if self.wanted:
            self._thread.join()

    def _print(self) -> None:
        while not self._over.wait(EVERY):
            sys.stderr.write(f"{self.describe()}\n")
            sys.stderr.flush()


def counted(items: Iterable[Item], what: str, total: int = 0) -> Iterator[Item]:
    """Yield `items`, and print lines about their number; `total` 0: not known."""
    clock, done = Clock(), 0

    def describe() -> str:
        of = f" of {total}" if total else ""
        return f"{what}: {done}{of}, {clock.text(total)}"

    with Lines(describe):
        for item in items:
            yield item
            done += 1
            clock.reach(done)


def span(seconds: float) -> str:
    """Write a time as 0:05, 12:30 or 3:07:00."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
