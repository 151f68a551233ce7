"""Shared parts of stages: methods and prompts of a config, provenance, report form."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import models
from decoding import Method, recipes
from experiments.measurement import machine
from experiments.prompts import builtin_tasks, question_files
from experiments.run_folder import RunFolder, text, write
from models.errors import ConfigError
from models.heads.formats import native
from models.synthetic import larger

PLAIN = "plain"


def methods(config: Any) -> dict[str, Method]:
    """Build the methods to measure, by name, plain decoding first."""
    named = {PLAIN: recipes.method(PLAIN)}
    variants, trained = config.get("variants", {}), config.get("trained", {})
    main = None
    if "method" in config:
        # The recipe's own field wins over its file, so that it can be overridden, and
        # needs no file of configs/.
        main = next((n for n in config.methods if n != PLAIN), PLAIN)
        named[main] = Method.from_config(config.method.to_dict())
    for name in config.methods:
        if name == main:
            continue
        if name in variants:
            named[name] = Method.from_config(variants[name])
        elif name in trained:
            named[name] = Method.from_config(native.method(trained[name]))
        elif name not in named:
            named[name] = recipes.method(name)
    return named


def load(config: Any, named: dict[str, Method]) -> tuple[Any, dict[str, Any]]:
    """Load the target, and those of config.drafts that a method needs."""
    needs = {n for m in named.values() for n in m.needs}
    drafts = {n: models.load(d) for n, d in config.drafts.items() if n in needs}
    return models.load(config.model, mesh=config.mesh, rules=config.rules), drafts


def enlarged(config: Any, lm: Any) -> Any:
    """Return the target with the cost of `config.larger` parameters, or as it is."""
    if not config.larger:
        return lm
    params = larger.params(lm.model, lm.params, config.larger)
    model = larger.language_model(lm.model, config.larger)
    return replace(lm, model=model, params=params)


def texts(config: Any, lm: Any) -> dict[str, list[list[int]]]:
    """Build the token prompts of every task, from `config.data` or built in."""
    count, size, new = config.prompts, config.prompt_tokens, config.max_new_tokens
    if config.data:
        chat = {"chat": config.get("chat", True)}
        if config.get("chat_variables"):
            chat["variables"] = config.chat_variables.to_dict()
        return question_files.build(
            lm, config.data, config.tasks, count, size, new, **chat
        )
    return builtin_tasks.build(lm, config.tasks, count, size)


def provenance(store: RunFolder) -> tuple[dict, dict]:
    """Return (hardware, versions), stored with the run's first piece.

    ConfigError where a resumed run is on another machine or other versions: its rows
    do not belong in one table.
    """
    now = {"hardware": machine.hardware(), "versions": machine.versions()}
    stored = store.make("parts", "provenance", lambda: now)
    for kind, fields in now.items():
        lines = [f"{n}: {stored[kind].get(n)} -> {v}" for n, v in fields.items()]
        lines = [
            x for x, (n, v) in zip(lines, fields.items()) if stored[kind].get(n) != v
        ]
        if lines:
            raise ConfigError(
                f"{store.path} was measured with other {kind}:\n  "
                + "\n  ".join(lines)
                + "\nUse another --workdir."
            )
    return stored["hardware"], stored["versions"]


def study(store: RunFolder, **found: Any) -> dict[str, Any]:
    """Return a report without rows of methods: provenance, and the stage's `found`."""
    return {
        "hardware": machine.hardware(),
        "versions": machine.versions(),
        "bandwidth": store.make("parts", "bandwidth", machine.bandwidth),
        "rows": [],
        **found,
    }


def write_page(
    store: RunFolder, found: dict[str, Any], markdown: Callable[[dict[str, Any]], str]
) -> dict[str, Any]:
    """Write report.json, and report.md from it by `markdown`; return the report."""
    parts = {name: part for name, part in found.items() if name != "commands"}
    report = {**parts, "command": "".join(found["commands"])}
    write(store.path / "report.json", report)
    text(store.path / "report.md", markdown(report))
    return report


def line(row: dict[str, Any]) -> str:
    """Format a finished row for the terminal."""
    verdict = {True: "identical", False: "DIFFERENT", None: row["guarantee"].lower()}[
        row["identical_to_plain"]
    ]
    return (
        f"{row['key']:36} {row['tokens_per_call']:5.2f} tokens/call "
        f"{row['speedup']:5.2f}x {row['tokens_per_s']:7.0f} tokens/s  {verdict}"
    )
