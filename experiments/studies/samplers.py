"""Samplers on small models: the direction of each paper's claim.

Every part decodes the same prompts under the same seeds in several arms, and takes
differences prompt by prompt. Its parts are in `sampler_transforms.py`,
`sampler_streams.py` and `sampler_searches.py`; each is one piece of the run's folder.
Prompts are held-out text: chapters of novels and articles that the text model was not
trained on, HumanEval's tasks, files of the standard library.
"""

import functools
import time
from collections.abc import Sequence
from typing import Any

from experiments import console
from experiments.run_folder import RunFolder
from experiments.stage import Stage
from experiments.studies import (
    common,
    sampler_searches,
    sampler_streams,
    sampler_texts,
    sampler_transforms,
)
from experiments.studies.sampler_texts import Part, Study
from models import storage
from models.errors import ConfigError

PARTS: dict[str, Part] = {
    "mirostat": sampler_transforms.MIROSTAT,
    "momentum": sampler_transforms.MOMENTUM,
    "xtc": sampler_transforms.XTC,
    "dry": sampler_transforms.DRY,
    "gedi": sampler_streams.GEDI,
    "uscd": sampler_streams.USCD,
    "knn_lm": sampler_streams.KNN_LM,
    "adadec": sampler_searches.ADADEC,
    "cntp": sampler_searches.CNTP,
    "superposed": sampler_searches.SUPERPOSED,
    "conditional_beam": sampler_searches.CONDITIONAL_BEAM,
    "hidden_state_optimisation": sampler_searches.HSO,
}


def run(config: Any, store: RunFolder, lm: Any = None) -> dict[str, Any]:
    """Measure what is missing and return everything; `lm` is loaded unless given."""
    names = chosen(config)
    common.provenance(store)
    left, todo = {}, []
    for name in names:
        missing = [] if lm else [f for f in PARTS[name].models if not config[f]]
        if missing:
            left[name] = missing
        else:
            todo.append(name)
    check_data(config, [n for n in todo if not store.has("parts", n)])
    study, found = Study(config, store.path, lm), {}
    with console.bar(len(todo), "part") as bar:
        for name in todo:
            bar.doing(name)
            found[name] = store.make(
                "parts", name, functools.partial(timed, name, study)
            )
            bar.done(f"{name}: {found[name]['seconds']:.0f} s")
    tables = [sampler_texts.of_directions(found, PARTS, config)]
    tables[0]["notes"] += [
        f"{name} is left out: config.{' and config.'.join(fields)} names no model."
        for name, fields in left.items()
    ]
    tables += [sampler_texts.of_part(PARTS[name], part) for name, part in found.items()]
    return common.study(store, samplers=found, tables=tables)


def timed(name: str, study: Study) -> dict[str, Any]:
    """Measure a part, and how long it takes."""
    begun = time.perf_counter()
    return {**PARTS[name].measure(study), "seconds": time.perf_counter() - begun}


def chosen(config: Any) -> tuple[str, ...]:
    """Return the parts of the config; () chooses all."""
    unknown = [name for name in config.parts if name not in PARTS]
    if unknown:
        raise ConfigError(
            f"config.parts has {unknown[0]!r}, which is no part: use {tuple(PARTS)}"
        )
    for field in ("seeds", "prompts", "batch"):
        if config[field] < 1:
            raise ConfigError(f"config.{field}={config[field]}: use 1 or more")
    return tuple(config.parts) or tuple(PARTS)


def check_data(config: Any, names: Sequence[str]) -> None:
    """Raise ConfigError where a folder that a part reads is missing."""
    for name in names:
        for folder in PARTS[name].data:
            place = storage.path(config.data) / folder if config.data else None
            if place is None or not place.is_dir():
                raise ConfigError(
                    f"config.data={config.data!r} has no folder {folder!r}, which the "
                    f"part {name} reads: name the directory that has it, or leave the "
                    "part out of config.parts"
                )


STAGE = Stage(run, "Samplers on small models", ("parts",), parts=("samplers",))
