"""Decoding speed of a model with and without a constraint, on each engine."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

import decoding
from experiments import console
from experiments.run_folder import RunFolder
from experiments.studies import constraint_peers

Row = dict[str, Any]

PLAIN = "no constraint"
ARMS: dict[str, tuple[str, str]] = {  # name -> package, engine
    PLAIN: ("", ""),
    "device": ("", "device"),
    "host": ("llguidance", "host"),
}


def measured(config: Any, store: RunFolder, load: Callable[[], Any]) -> list[Row]:
    """Measure all arms at every batch size; each size is a piece of the run folder."""
    rows: list[Row] = []
    with console.bar(len(config.batches), "speed") as bar:
        for batch in config.batches:
            bar.doing(f"{batch} rows")
            work = functools.partial(compared, config, load, batch)
            rows += store.make("speed", str(batch), work)
            bar.done()
    return rows


def compared(config: Any, load: Callable[[], Any], batch: int) -> list[Row]:
    """Decode with every arm in turn, repeatedly, after a run that compiles.

    Returns:
        For each arm: batch, and of each repeat seconds and new tokens; host_syncs.
    """
    lm = load()
    names = [
        name
        for name, (package, _) in ARMS.items()
        if constraint_peers.is_installed(package)
    ]
    rows: dict[str, Row] = {
        name: {"arm": name, "batch": batch, "runs": []} for name in names
    }
    for repeat in range(config.repeats + 1):
        for name in names:
            out = decode(config, lm, batch, name)
            seconds, new = out.stats.seconds, int(np.sum(out.stats.new_tokens))
            if repeat:
                rows[name]["runs"].append([seconds, new])
            rows[name]["host_syncs"] = int(out.stats.host_syncs)
    return list(rows.values())


def decode(config: Any, lm: Any, batch: int, name: str) -> Any:
    """Decode `batch` rows plainly, under the constraint that the arm has."""
    fields: dict[str, Any] = {"max_new_tokens": config.tokens, "seed": 0}
    if name != PLAIN:
        constraint = {"json_schema": config.speed_schema}
        fields |= {"constraint": constraint, "engine": ARMS[name][1]}
    prompts = [f"{config.prompt}{i}\n" for i in range(batch)]
    return decoding.generate(lm, prompts, temperature=1.0, **fields)
