"""Read the recipe of a command line; print its fields for --list_fields."""

import argparse
from collections.abc import Sequence
from typing import Any

from ml_collections import ConfigDict
from rich import console, table

from experiments.recipes import field_lines, settings
from training import command_line

COLUMNS = 100  # of the printed table
LONGEST = 24  # characters of a printed default


def define(parser: command_line.Parser) -> None:
    """Define the flags of a command that takes a recipe."""
    parser.add_argument("--config", default="", help="a recipe, configs/FILE.py")
    text = "print the recipe's fields, and run nothing"
    parser.add_argument("--list_fields", action="store_true", help=text)


def read(
    parser: command_line.Parser, arguments: Sequence[str]
) -> tuple[argparse.Namespace, ConfigDict]:
    """Parse a command's flags, its recipe, and its overrides `--config.field=value`.

    With --list_fields the fields are printed, and SystemExit ends the command.

    Raises:
        ConfigError: an unknown flag or field, a wrong value, or no recipe.
    """
    define(parser)
    overrides = [a for a in arguments if a.startswith("--config.")]
    options = parser.read([a for a in arguments if a not in overrides])
    config, _ = settings.resolve([f"--config={options.config}", *overrides])
    if options.list_fields:
        show(options.config, config)
        raise SystemExit(0)
    return options, config


def show(path: str, config: ConfigDict) -> None:
    """Print a recipe's fields as they are written on the command line."""
    grid = table.Table(box=None, padding=(0, 1, 0, 0), show_edge=False)
    grid.add_column("--config.FIELD=", overflow="fold")
    grid.add_column("type")
    grid.add_column("default", overflow="fold", max_width=LONGEST)
    grid.add_column("meaning")
    lines = field_lines.lines(path, config)
    for name, value in settings.flat(config.to_dict()).items():
        row = (name, _kind(value), _short(value), lines[name])
        grid.add_row(*(console.Text(cell) for cell in row))
    console.Console(width=COLUMNS).print(grid)


def _kind(value: Any) -> str:
    return "fields" if isinstance(value, dict) else type(value).__name__


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
