"""Plots of trainings: acceptance and loss by tokens, and the machine's speed."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

Points = list[tuple[float, float]]


class Trained(NamedTuple):
    """A finished training.

    `figures` are those of `training.loop.metrics_writer.figures`; `step_tokens` is the
    number of tokens of a step.
    """

    name: str
    figures: dict[str, Any]
    step_tokens: float
    untrained: dict[str, float]
    trained: dict[str, float]


def plots(trainings: Sequence[Trained]) -> list[dict[str, Any]]:
    """Plot tokens per call, loss, tokens/s and MFU by tokens; acceptance by depth."""
    thousands = "thousands of tokens trained on"
    labels = [t.figures.get("label", "loss") for t in trainings]
    alike = len({*labels}) == 1
    title = f"{labels[0] if alike else 'loss'} while training"
    drawn = []
    by_tokens: tuple[tuple[str, str, Callable[[Trained], Points]], ...] = (
        ("training", "tokens per call while training, held out", _taus),
        ("loss", title, lambda t: t.figures["losses"]),
        ("pace", "tokens a second while training", lambda t: _paces(t, "tokens_per_s")),
        ("mfu", "MFU while training", lambda t: _paces(t, "mfu")),
    )
    for name, title, points in by_tokens:
        names = [t.name for t in trainings]
        if name == "loss" and not alike:
            names = [f"{t.name}, {label}" for t, label in zip(trainings, labels)]
        lines = [
            _series(of, [(_thousands(t, step), y) for step, y in points(t)])
            for of, t in zip(names, trainings)
        ]
        drawn.append({"name": name, "title": title, "x": thousands, "series": lines})
    for name, title, key in (
        ("first_guess", "first guess right, given the text's tokens before it", "top1"),
        ("after", "drafts taken, given those before them in the loop", "after"),
    ):
        lines = [_series(t.name, _depths(t.trained, key)) for t in trainings]
        lines = [line for line in lines if line["x"]]
        if lines:
            drawn.append({"name": name, "title": title, "x": "depth", "series": lines})
    return drawn


def _thousands(training: Trained, step: float) -> float:
    return step * training.step_tokens / 1000


def _taus(training: Trained) -> Points:
    first = [(0.0, training.untrained["tau"])]
    return first + [(row["step"], row["tau"]) for row in training.figures["curve"]]


def _paces(training: Trained, name: str) -> Points:
    return [(row["step"], row[name]) for row in training.figures["throughput"]]


def _depths(measured: dict[str, float], key: str) -> Points:
    """Collect (depth, share) of the figures `<key>_0`, `<key>_1`, .."""
    shares: Points = []
    while f"{key}_{len(shares)}" in measured:
        shares.append((len(shares) + 1.0, measured[f"{key}_{len(shares)}"]))
    return shares


def _series(name: str, points: Points) -> dict[str, Any]:
    xs, ys = [x for x, _ in points], [y for _, y in points]
    return {"name": name, "x": xs, "y": ys, "error": [0.0] * len(xs)}
