"""The stage `train_acceptance`: an acceptance head, its calibration and its price."""

import json
from typing import Any

from experiments import console, evaluate, figures, store
from experiments.store import Store
from models import processes
from training import acceptance, calibration


def run(config: Any, folder: Store, lm: Any = None, own: Any = None) -> dict[str, Any]:
    """Train and measure what is missing; writes report.json, report.md and figures."""
    hardware, versions = evaluate.provenance(folder)
    file = folder.path / "figures.json"
    if not processes.agreed(file.exists()):
        acceptance.run(config, folder.path, lm, own)
    found = json.loads(file.read_text())
    found["hardware"], found["versions"] = hardware, versions
    store.write(folder.path / "report.json", found)
    plots = [
        calibration.plot(name, calibration.Bins(**found["calibration"][name]))
        for name in ("raw", "unweighted")
    ]
    figures.draw({"rows": [], "plots": plots}, folder.path / "figures")
    text = markdown(config.name, found)
    store.text(folder.path / "report.md", text)
    console.terminal().print(text, markup=False)
    return found


def markdown(name: str, found: dict[str, Any]) -> str:
    """The head and its prices as a page."""
    raw, true = (found["calibration"][k] for k in ("raw", "unweighted"))
    lines = [
        f"# {name}",
        "",
        f"{found['parameters']} parameters, {found['seen_tokens']} tokens in "
        f"{found['seconds']:.0f} s. Of held-out drafts {100 * found['accepted']:.1f} % "
        f"are accepted. AUC {raw['auc']:.3f}; calibration error {raw['error']:.3f} as "
        f"trained, {true['error']:.3f} with the rejection weight undone.",
        "",
        "Tokens / (target calls + c draft calls):",
        "",
        "| c | best fixed length | | best threshold | | gain |",
        "|---|---|---|---|---|---|",
    ]
    for row in found["prices"]:
        fixed, own = row["fixed"], row["h"]
        gain = own["tokens_per_cost"] / fixed["tokens_per_cost"] - 1
        lines.append(
            f"| {row['cost']:g} | {fixed['name']} | {fixed['tokens_per_cost']:.3f} | "
            f"{own['name']} | {own['tokens_per_cost']:.3f} | {100 * gain:+.1f} % |"
        )
    return "\n".join(lines) + "\n"
