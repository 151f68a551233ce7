"""Flags, mistakes and interruptions, as all commands of the project treat them.

A mistake is one message on stderr and status 2. An unknown flag is a mistake, whose
message names the nearest flag. Ctrl-C prints one line with the command that resumes,
and ends with status 130; SIGTERM does so with status 75, which asks for a restart.
"""

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import jax
from rich import console

from models.errors import ConfigError, DecodaxError, hint
from training.loop import preemption

MISTAKE, INTERRUPTED = 2, 130
LAUNCHED = "DECODAX_LAUNCHED"  # set where a launcher prints that line


class Parser(argparse.ArgumentParser):
    """Parse a command's flags; raise ConfigError for a mistake in them."""

    def __init__(self, module: str, about: str | None) -> None:
        self.names: list[str] = []  # `add_argument` below is called by `super`
        super().__init__(
            prog=f"python -m {module}",
            description=about,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def add_argument(self, *args: Any, **options: Any) -> argparse.Action:
        """Add a flag, as argparse does."""
        action = super().add_argument(*args, **options)
        self.names += action.option_strings
        return action

    def read(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse `arguments`; ConfigError for unknown flags and wrong values."""
        flags = [a.partition("=")[0] for a in arguments if a.startswith("--")]
        for name in flags:
            if name not in self.names:
                raise ConfigError(
                    f"unknown flag {name}{hint(name, self.names)}; --help lists all"
                )
        return self.parse_args(arguments)

    def error(self, message: str) -> NoReturn:
        """Raise ConfigError in place of argparse's exit."""
        raise ConfigError(f"{message}; --help lists the flags")


def words(module: str, arguments: Sequence[str]) -> list[str]:
    """Return the words of a command; `shlex.join` writes them for a shell."""
    return ["python", "-m", module, *arguments]


def call(
    module: str,
    body: Callable[[list[str]], int],
    arguments: Sequence[str] | None = None,
    resumes: bool = False,
) -> int:
    """Run a command, and return its exit status.

    Args:
        module: the command, as in `python -m module`.
        body: gets the arguments; returns a status.
        arguments: by default the process's own.
        resumes: whether the same command, started again, continues its work.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    again = f"; resume: {shlex.join(words(module, arguments))}" if resumes else ""
    try:
        return body(arguments)
    except DecodaxError as error:
        complain(error)
        return MISTAKE
    except preemption.Preempted as notice:
        _say(f"{notice}{again}")
        return preemption.REQUEUE
    except KeyboardInterrupt as notice:
        _say(f"{str(notice) or 'interrupted'}{again}")
        return INTERRUPTED
    except SystemExit as end:  # of --help
        if end.code:
            raise
        return 0


def complain(error: Exception) -> None:
    """Print the name and message of one of the project's errors, no traceback."""
    out = console.Console(stderr=True, soft_wrap=True)
    out.print(f"[bold red]{type(error).__name__}[/]", end=": ")
    out.print(str(error), markup=False, highlight=False)


def _say(text: str) -> None:
    """Print a line on stderr, unless another process does."""
    if os.environ.get(LAUNCHED):
        return
    if jax.distributed.is_initialized() and jax.process_index() != 0:
        return
    line = "\n" if sys.stderr.isatty() else ""  # below the terminal's own ^C
    sys.stderr.write(f"{line}{text}\n")
