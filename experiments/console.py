"""Print progress bars and messages in the terminal, on process 0 only."""

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
from rich import console, progress

COLUMNS = (
    progress.TextColumn("[bold]{task.description}"),
    progress.BarColumn(),
    progress.MofNCompleteColumn(),
    progress.TimeElapsedColumn(),
)


def terminal() -> console.Console:
    """Make a console that prints on process 0 alone.

    Works before the processes have joined: it looks for no device.
    """
    is_follower = jax.distributed.is_initialized() and jax.process_index() != 0
    return console.Console(quiet=is_follower)


class Bar:
    """A progress bar whose description names the piece in work."""

    def __init__(self, shown: progress.Progress, task: Any):
        self.shown, self.task = shown, task

    def doing(self, what: str) -> None:
        self.shown.update(self.task, description=what)

    def done(self, what: str = "") -> None:
        """Advance by one finished piece, and print `what` above the bar."""
        if what:
            self.say(what)
        self.shown.advance(self.task)

    def say(self, what: str) -> None:
        self.shown.console.print(what, highlight=False, soft_wrap=True)


@contextlib.contextmanager
def bar(total: int, what: str) -> Iterator[Bar]:
    """Show a progress bar of `total` pieces."""
    with progress.Progress(*COLUMNS, console=terminal(), transient=True) as display:
        yield Bar(display, display.add_task(what, total=total))
