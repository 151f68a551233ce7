"""Find the stage that a recipe's field `stage` names: one file of that name.

A stage is experiments/studies/<stage>.py or experiments/trainings/<stage>.py, or a file
of a package in them, with `STAGE` at its end. No list names them: a new file is a new
stage. A stage is imported when it is run, so none needs another's optional packages.
"""

import functools
import importlib
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from models import storage
from models.errors import ConfigError, hint

HERE = pathlib.Path(__file__).parent
FOLDERS = ("studies", "trainings")
MARK = "\nSTAGE = "  # the line that marks a stage's file

# Old names, in recipes and run folders of version 0.1.0.
RENAMED = {
    "budget": "tree_budget",
    "kernels": "tpu_compilation",
    "laws": "verifier_acceptance",
    "online": "online_draft",
    "parallel": "pearl_overlap",
    "peers": "hf_transformers",
    "speed": "synthetic_speed",
    "train_acceptance": "acceptance_head",
    "train_drafts": "draft_models",
    "train_exits": "exit_predictors",
    "train_heads": "draft_heads",
    "train_judge": "judge",
    "train_lm": "language_model",
    "trim_vocabulary": "vocab_trim",
}


class Section(NamedTuple):
    """A table of the report, in Markdown and on the page.

    Attributes:
        title: its heading.
        heads: the text above each column.
        lines: the text of each row's cells.
        notes: sentences below it.
        words: number of leading columns that hold words; the others hold numbers.
        mark: (row, column) -> "good", "bad" or "": the colour of a cell on the page.
    """

    title: str
    heads: Sequence[str]
    lines: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    words: int = 1
    mark: Callable[[int, int], str] = lambda i, j: ""


def no_sections(report: dict[str, Any]) -> Sequence[Section]:
    """Add no table to a report."""
    return ()


def no_figures(report: dict[str, Any], folder: storage.Path) -> None:
    """Add no figure to a report."""


class Preflight(NamedTuple):
    """The programs of a stage, for `experiments.preflight` to compile.

    Attributes:
        programs: (config, mesh, dtype) -> the programs, `preflight.programs.Program`.
        target: config -> the Config of the model whose size chooses an "auto" mesh.
        preset: the kind of that mesh: "decode" or "train".
    """

    programs: Callable[[Any, Any, Any], Sequence[Any]]
    target: Callable[[Any], Any]
    preset: str = "decode"


class Trial(NamedTuple):
    """A training that `experiments.preflight` runs before it compiles.

    Attributes:
        name: of the training, in errors.
        params: before the first step.
        train: () -> the params after the recipe's steps, by the run's own code.
        decode: trained params -> texts or figures of the recipe's method with them.
        folder: where the training writes its metrics.
        optimised: whether it takes steps of an optimiser, with a loss for each.
    """

    name: str
    params: Any
    train: Callable[[], Any]
    decode: Callable[[Any], Any]
    folder: storage.Path
    optimised: bool = True


class Stage(NamedTuple):
    """A stage, as `experiments.run` and `experiments.preflight` use it.

    Attributes:
        run: (config, run folder) -> measurements for the report, each piece stored in
            the folder; None if the stage has no report.
        title: heading of the report; {} is the config's model.
        resumable_fields: fields that may change when a run is resumed, since no
            finished piece depends on them.
        write: (run folder, config as JSON holds it, measurements) -> report; None:
            `experiments.reporting.report.write`.
        parts: measurements that report.json holds beside those of every stage.
        sections: report -> its tables that are made from `parts`.
        draw: (report, folder) -> PNG files of `parts`, written into the folder.
        preflight: its programs that can be compiled from shapes; None: it has none.
        trials: (config, folder, target, draft model or None) -> its trainings in order,
            each prepared when the one before is over; None: it trains nothing.
    """

    run: Callable[..., dict[str, Any] | None]
    title: str
    resumable_fields: tuple[str, ...] = ()
    write: Callable[[Any, Any, dict[str, Any]], dict[str, Any]] | None = None
    parts: tuple[str, ...] = ()
    sections: Callable[[dict[str, Any]], Sequence[Section]] = no_sections
    draw: Callable[[dict[str, Any], storage.Path], None] = no_figures
    preflight: Preflight | None = None
    trials: Callable[..., Iterator[Trial]] | None = None


@functools.cache
def modules() -> dict[str, str]:
    """Return the module of every stage, by the stage's name."""
    paths = {}
    for folder in FOLDERS:
        for path in sorted((HERE / folder).rglob("*.py")):
            if MARK in path.read_text():
                parts = path.relative_to(HERE.parent).with_suffix("").parts
                paths[path.stem] = ".".join(parts)
    return paths


def check(name: Any) -> None:
    """Raise ConfigError unless `name` is a stage; imports nothing."""
    names = sorted(modules())
    if name in names:
        return
    if isinstance(name, str) and name in RENAMED:
        raise ConfigError(
            f"stage={name!r} is now stage={RENAMED[name]!r}: write that in the recipe"
        )
    close = hint(name, names)
    raise ConfigError(f"stage={name!r} is no stage{close}; use one of {names}")


def find(name: Any) -> Stage:
    """Return `STAGE` of the file that has the stage's name."""
    check(name)
    stage: Stage = importlib.import_module(modules()[name]).STAGE
    return stage


def of(report: dict[str, Any]) -> Stage:
    """Return the stage that made a report."""
    return find(report["config"].get("stage", "evaluate"))


def current(config: dict[str, Any]) -> dict[str, Any]:
    """Return a stored config with the present name of its stage."""
    name = config.get("stage")
    if isinstance(name, str) and name in RENAMED:
        return {**config, "stage": RENAMED[name]}
    return config
