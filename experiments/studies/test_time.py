"""Searches at test time: what more model calls buy, against simpler ways to spend them.

Four parts, each with a model of its own: Countdown problems, programs from examples,
sentences with given words, and examples of what a command does. Every seed has problems
of its own, on which all searches are compared in pairs.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import models
from decoding.execution import tests_runner
from experiments.run_folder import RunFolder
from experiments.stage import Stage
from experiments.studies import (
    common,
    searched_countdown,
    searched_pages,
    searched_programs,
    searched_sentences,
)
from models import storage
from models.errors import ConfigError


class Part(NamedTuple):
    """A part of the study.

    Attributes:
        model: the field of its model.
        folder: where its data lie below `config.data`; "": it has none.
        problems: config -> all problems there are.
        measure: (config, run folder, model) -> its tables.
    """

    model: str
    folder: str
    problems: Callable[[Any], Sequence[Any]]
    measure: Callable[[Any, RunFolder, Any], list[dict[str, Any]]]


PARTS = {
    "countdown": Part(
        *("countdown_model", ""),
        *(searched_countdown.problems, searched_countdown.measure),
    ),
    "programs": Part(
        *("programs_model", ""),
        *(searched_programs.problems, searched_programs.measure),
    ),
    "commongen": Part(
        *("text_model", "commongen"),
        *(searched_sentences.problems, searched_sentences.measure),
    ),
    "tldr": Part(
        "text_model", "tldr_pages", searched_pages.problems, searched_pages.measure
    ),
}


def run(
    config: Any, store: RunFolder, lms: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Measure what is missing and return everything; `lms` replaces models by field."""
    check(config)
    loaded = dict(lms or {})
    for part in config.parts:
        field = PARTS[part].model
        if field not in loaded:
            loaded[field] = models.load(config[field])
    tables = []
    for part in config.parts:
        tables += PARTS[part].measure(config, store, loaded[PARTS[part].model])
    return common.study(store, tables=tables)


def check(config: Any) -> None:
    """Raise ConfigError for what would fail later, before anything is compiled."""
    unknown = [part for part in config.parts if part not in PARTS]
    if unknown or not config.parts:
        raise ConfigError(f"config.parts={config.parts}: use some of {[*PARTS]}")
    if "programs" in config.parts and os.environ.get(tests_runner.SWITCH) != "1":
        raise ConfigError(
            "config.parts holds 'programs', which runs what a model wrote on this "
            "machine: read decoding/execution/tests_runner.py, then set "
            f"{tests_runner.SWITCH}=1, or leave the part out"
        )
    file = config.countdown.file.partition("/")[0]
    for part in config.parts:
        folder = file if part == "countdown" else PARTS[part].folder
        there = config.data and (storage.path(config.data) / folder).is_dir()
        if folder and not there:
            raise ConfigError(
                f"config.data={config.data!r} has no folder {folder}, which the part "
                f"{part!r} reads: give the folder above it"
            )
    for part in config.parts:
        needed = len(config.seeds) * config[part].problems
        count = len(PARTS[part].problems(config))
        if not 0 < needed <= count:
            raise ConfigError(
                f"config.seeds={config.seeds} of config.{part}.problems="
                f"{config[part].problems}: there are {count}, use 1 to as many in all"
            )


STAGE = Stage(run, "Searches at test time", ("parts",))
