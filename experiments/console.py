"""The terminal: progress bars and messages, on process 0 only."""

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
    """A console that says nothing except on process 0.

    It may be asked for before the processes have met: no device is looked for.
    """
    follows = jax.distributed.is_initialized() and jax.process_index() != 0
    return console.Console(quiet=follows)


class Bar:
    """One bar; its description is what is being worked on."""

    def __init__(self, shown: progress.Progress, task: Any):
        self.shown, self.task = shown, task

    def doing(self, what: str) -> None:
        self.shown.update(self.task, description=what)

    def done(self, what: str = "") -> None:
        """A piece is finished; `what` is printed above the bar."""
        if what:
            self.say(what)
        self.shown.advance(self.task)

    def say(self, what: str) -> None:
        self.shown.console.print(what, highlight=False, soft_wrap=True)


@contextlib.contextmanager
def bar(total: int, what: str) -> Iterator[Bar]:
    """A progress bar of `total` pieces."""
    with progress.Progress(*COLUMNS, console=terminal(), transient=True) as shown:
        yield Bar(shown, shown.add_task(what, total=total))


def complain(error: Exception) -> None:
    """An error of the project's own: its name and message, without a traceback."""
    out = console.Console(stderr=True)
    out.print(f"[bold red]{type(error).__name__}[/]", end=": ")
    out.print(str(error), markup=False, highlight=False)
