"""The stages `train_judge` and `train_exits`: what is trained for methods that change
the text, what they gain, and how far the text is from the target's."""

import json
from collections.abc import Sequence
from typing import Any

from experiments import console, evaluate, store
from experiments.store import Store
from training import exits, judging


def judge(config: Any, folder: Store, lm: Any = None, own: Any = None) -> dict:
    """A judge and the training-free rule; writes report.json and report.md."""
    if not (folder.path / "figures.json").exists():
        judging.run(config, folder.path, lm, own)
    found = _read(folder)
    train, held = found["cases"]
    return _report(
        config,
        folder,
        found,
        f"{train} mismatches to learn from, {held} held out, of which "
        f"{100 * found['good']:.1f} % do no harm. The judge is right about "
        f"{100 * found['accuracy']:.1f} % of them (the commoner kind alone: "
        f"{100 * found['guess']:.1f} %), AUC {found['calibration']['auc']:.3f}.",
        ("tokens_per_call",),
    )


def early(config: Any, folder: Store, lm: Any = None) -> dict:
    """Exit predictors, two schedules; writes report.json and report.md."""
    if not (folder.path / "figures.json").exists():
        exits.run(config, folder.path, lm)
    found = _read(folder)
    held = found["held_out"]
    stops = ", ".join(f"{100 * x:.1f}" for x in held["stops"])
    return _report(
        config,
        folder,
        found,
        f"{found['parameters']} parameters, {found['seen_tokens']} tokens in "
        f"{found['seconds']:.0f} s. On held-out text a layer's answer is the target's "
        f"in {100 * held['right']:.1f} % of the cases, a predictor right in "
        f"{100 * held['hit']:.1f} %; {100 * held['stopped']:.1f} % of the tokens would "
        f"stop early, {100 * held['kept']:.1f} % of these with the target's answer. "
        f"Layers taken, from 1: {stops} %. First level: {found['static']}.",
        ("layers",),
    )


def _read(folder: Store) -> dict[str, Any]:
    found = json.loads((folder.path / "figures.json").read_text())
    found["hardware"], found["versions"] = evaluate.provenance(folder)
    return found


def _report(
    config: Any,
    folder: Store,
    found: dict[str, Any],
    said: str,
    gains: Sequence[str],
) -> dict[str, Any]:
    store.write(folder.path / "report.json", found)
    text = markdown(config.name, said, found["decoding"], gains)
    store.text(folder.path / "report.md", text)
    console.terminal().print(text, markup=False)
    return found


def markdown(name: str, said: str, rows: dict[str, Any], gains: Sequence[str]) -> str:
    """The rows of `training.lossy` as a page."""
    heads = " | ".join(gain.replace("_", " ") for gain in gains)
    lines = [
        f"# {name}",
        "",
        said,
        "",
        f"| | {heads} | nats a token | texts as plain's | tokens before they part |",
        "|---|" + "---|" * (len(gains) + 3),
    ]
    for label, row in rows.items():
        own = " | ".join(f"{row[gain]:.2f}" for gain in gains)
        lines.append(
            f"| {label} | {own} | {row['nats']:.3f} | {100 * row['same']:.0f} % | "
            f"{100 * row['shared']:.0f} % |"
        )
    lines += ["", "nats: of the text under the whole target; it is no measure of use."]
    return "\n".join(lines) + "\n"
