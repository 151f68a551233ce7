"""Print progress and messages, on process 0 only."""

import contextlib
from collections.abc import Iterator

import jax
from rich import console, progress

from training import progress_lines

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

    def __init__(self, shown: progress.Progress, task: progress.TaskID):
        self.shown, self.task = shown, task
        self.clock = progress_lines.Clock(shortest=progress_lines.STORED)

    def doing(self, what: str) -> None:
        self.shown.update(self.task, description=what)

    def done(self, what: str = "") -> None:
        """Advance by one finished piece, and print `what` above the bar."""
        if what:
            self.say(what)
        self.shown.advance(self.task)
        self.clock.reach(int(self.shown.tasks[self.task].completed))

    def reach(self, count: int) -> None:
        """Set the number of finished pieces."""
        self.shown.update(self.task, completed=count)
        self.clock.reach(count)

    def say(self, what: str) -> None:
        self.shown.console.print(what, highlight=False, soft_wrap=True)

    def line(self) -> str:
        """Describe the piece in work, for output that is no terminal."""
        task = self.shown.tasks[self.task]
        total = int(task.total or 0)
        number = min(int(task.completed) + 1, total)
        return f"{task.description}: {number} of {total}, {self.clock.text(total)}"


@contextlib.contextmanager
def bar(total: int, what: str) -> Iterator[Bar]:
    """Show a progress bar of `total` pieces, or lines where there is no terminal."""
    out = terminal()
    display = progress.Progress(
        *COLUMNS, console=out, transient=True, disable=not out.is_terminal
    )
    with display:
        shown = Bar(display, display.add_task(what, total=total))
        with progress_lines.Lines(shown.line, not out.quiet):
            yield shown
