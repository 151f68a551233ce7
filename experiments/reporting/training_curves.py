"""Plots of trainings: what was learned, and how fast the machine was about it."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

Points = list[tuple[float, float]]


class Trained(NamedTuple):
    """A finished training.

    `figures` are `training.loop.metrics_writer.figures` and the last hits.
    """

    name: str
    figures: dict[str, Any]
    step_tokens: float
    untrained: dict[str, float]
    trained: dict[str, float]


def plots(trainings: Sequence[Trained]) -> list[dict[str, Any]]:
    """Tokens per call, loss, tokens/s and MFU by tokens, and acceptance by depth."""
    thousands = "thousands of tokens trained on"
    found = []
    by_tokens: tuple[tuple[str, str, Callable[[Trained], Points]], ...] = (
        ("training", "tokens per call while training, held out", _taus),
        ("loss", "loss while training", lambda t: t.figures["losses"]),
        ("pace", "tokens a second while training", lambda t: _paces(t, "tokens_per_s")),
        ("mfu", "MFU while training", lambda t: _paces(t, "mfu")),
    )
    for name, title, points in by_tokens:
        lines = [
            _series(t.name, [(_thousands(t, step), y) for step, y in points(t)])
            for t in trainings
        ]
        found.append({"name": name, "title": title, "x": thousands, "series": lines})
    for name, title, key in (
        ("first_guess", "first guess right, given the text's tokens before it", "top1"),
        ("after", "drafts taken, given those before them in the loop", "after"),
    ):
        lines = [_series(t.name, _depths(t.trained, key)) for t in trainings]
        lines = [line for line in lines if line["x"]]
        if lines:
            found.append({"name": name, "title": title, "x": "depth", "series": lines})
    return found


def _thousands(training: Trained, step: float) -> float:
    return step * training.step_tokens / 1000


def _taus(training: Trained) -> Points:
    first = [(0.0, training.untrained["tau"])]
    return first + [(row["step"], row["tau"]) for row in training.figures["curve"]]


def _paces(training: Trained, name: str) -> Points:
    return [(row["step"], row[name]) for row in training.figures["throughput"]]


def _depths(measured: dict[str, float], key: str) -> Points:
    """(depth, share) of the figures `<key>_<depth from 0>`."""
    found: Points = []
    while f"{key}_{len(found)}" in measured:
        found.append((len(found) + 1.0, measured[f"{key}_{len(found)}"]))
    return found


def _series(name: str, points: Points) -> dict[str, Any]:
    xs, ys = [x for x, _ in points], [y for _, y in points]
    return {"name": name, "x": xs, "y": ys, "error": [0.0] * len(xs)}
