"""Constrained decoding: all schemas, costs by vocabulary, other engines, speed."""

from typing import Any

import models
from experiments.benchmarks import jsonschemabench
from experiments.run_folder import RunFolder
from experiments.stage import Stage
from experiments.studies import (
    common,
    constraint_comparison,
    constraint_costs,
    constraint_peers,
    constraint_speed,
    constraint_tables,
    constraint_verdicts,
    constraint_vocabularies,
)
from models.errors import ConfigError

PARTS = (VERDICTS, COSTS, PEERS, SPEED) = ("verdicts", "costs", "peers", "speed")


def run(config: Any, store: RunFolder, lm: Any = None) -> dict[str, Any]:
    """Measure what is missing and return everything; `lm` is loaded unless given."""
    check(config)
    problems = []
    if set(config.parts) - {SPEED}:
        every = jsonschemabench.read(config.data)
        problems = jsonschemabench.drawn(every, config.schemas, config.seed)
    tables: list[dict[str, Any]] = []
    summary: dict[str, Any] = {}
    if VERDICTS in config.parts:
        rows = constraint_verdicts.measured(config, store, problems)
        tables += constraint_tables.of_verdicts(rows)
        summary[VERDICTS] = constraint_tables.verdict_summary(rows)
    if COSTS in config.parts:
        costs = {}
        for size, draw in zip(config.sizes, config.draws):
            trained = constraint_vocabularies.made(config, store, size)
            tried = jsonschemabench.tried(problems, draw)
            about = (config, store, trained, tried)
            costs[trained.size] = constraint_costs.measured(*about)
        tables += constraint_tables.of_costs(costs)
        summary[COSTS] = {size: start for size, (start, _) in costs.items()}
    if PEERS in config.parts:
        trained = constraint_vocabularies.made(config, store, config.peers_size)
        tried = jsonschemabench.tried(problems, config.peers_draw)
        peers = constraint_comparison.measured(config, store, trained, tried)
        tables += constraint_tables.of_peers(peers, trained.size)
        summary[PEERS] = {name: peer["version"] for name, peer in peers.items()}
    if SPEED in config.parts:
        load = lambda: lm or models.load(config.model)
        speeds = constraint_speed.measured(config, store, load)
        tables += constraint_tables.of_speed(speeds, constraint_speed.PLAIN)
    return common.study(store, tables=tables, summary=summary)


def check(config: Any) -> None:
    """Raise ConfigError for what would fail later, before anything is measured."""
    unknown = [part for part in config.parts if part not in PARTS]
    if unknown or not config.parts:
        raise ConfigError(f"config.parts={config.parts}: use some of {PARTS}")
    if not config.data and set(config.parts) - {SPEED}:
        raise ConfigError("config.data is empty: give the folder of JSONSchemaBench")
    if len(config.sizes) != len(config.draws):
        raise ConfigError(
            f"config.sizes={config.sizes}, config.draws={config.draws}: give a draw "
            "for each size"
        )
    if config.processes < 1 or config.chunk < 1 or config.cost_chunk < 1:
        raise ConfigError(
            f"config.processes={config.processes}, config.chunk={config.chunk}, "
            f"config.cost_chunk={config.cost_chunk}: use 1 or more"
        )
    constraint_peers.check(config.peers)


# No stored piece depends on these: draws are beginnings of one order.
RESUMABLE = (
    *("parts", "data", "schemas", "processes", "sizes", "draws", "peers", "text"),
    *("peers_size", "peers_draw", "batches"),
)
STAGE = Stage(run, "Constrained decoding: {}", RESUMABLE, parts=("summary",))
