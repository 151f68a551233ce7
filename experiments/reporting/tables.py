"""Texts that report.md and the page share: table cells, provenance, advice."""

from typing import Any

from experiments import stage

HEADS = (
    "method",
    "task",
    "T",
    "tokens/call",
    "loop-free",
    "speed-up",
    "tokens/s",
    "MBU",
    "draft share",
    "loop share",
    "identical",
    "ties",
    "compile s",
)


def cells(row: dict[str, Any]) -> list[str]:
    """Format a row's cells, in the order of HEADS."""
    low, high = row["ci95"]
    free = row["tokens_per_call_loop_free"]
    return [
        row["method"],
        row["task"],
        f"{row['temperature']:g}",
        f"{row['tokens_per_call']:.2f} ({low:.2f}–{high:.2f})",
        "–" if free is None else f"{free:.2f}",
        f"{row['speedup']:.2f}× ({row['speedup_with_prefill']:.2f}×)",
        f"{row['tokens_per_s']:.0f}",
        f"{row['mbu']:.2f}",
        f"{100 * row['draft_share']:.0f} %",
        f"{100 * row['loop_share']:.0f} %",
        {True: "yes", False: "NO", None: "law"}[row["identical_to_plain"]],
        f"{row['ties']}/{row['compared_tokens']}",
        f"{row['compile_seconds']:.1f}",
    ]


def title(report: dict[str, Any]) -> str:
    """Return the heading of a report."""
    return stage.of(report).title.format(report["config"].get("model", ""))


def provenance(report: dict[str, Any]) -> list[str]:
    """Describe the machine, the versions, the texts and the command of a report."""
    hard, config = report["hardware"], report["config"]
    versions = ", ".join(f"{n} {v}" for n, v in report["versions"].items())
    readers = report["bandwidth"]["readers"].items()
    lines = [
        f"hardware: {hard['processor']}, {hard['cores']} cores, "
        f"{hard['memory_gib']} GiB, {hard['last_level_cache_mib']:g} MiB last-level "
        f"cache; {hard['devices']} × {hard['device']}",
        f"read bandwidth: {report['bandwidth_gb_s']:.1f} GB/s, on arrays of "
        f"{report['bandwidth']['bytes'] / 2**20:.0f} MiB (best of "
        + ", ".join(f"{name} {rate:.1f}" for name, rate in readers)
        + ")",
        f"versions: {versions}",
    ]
    if report["rows"] and "prompts" in config:
        lines.append(
            f"texts: {config['prompts']} prompts a task of at most "
            f"{config['prompt_tokens']} tokens, {config['max_new_tokens']} new "
            f"tokens, batch {config['batch']}, {config['repeats']} repeats, "
            f"seed {config['seed']}"
        )
    lines += [f"command: `{command}`" for command in report.get("commands", ())]
    return lines


def advice(report: dict[str, Any]) -> list[str]:
    """Suggest a block width for each method, from the call times by width."""
    lines = []
    for entry in report.get("suggested", ()):
        line = f"{entry['key']}: measured with blocks of {entry['nodes']}; "
        if entry["width"] == 1:
            line += "no width pays here: choose N = 1, plain decoding"
        else:
            line += (
                f"a block of {entry['width']} would be fastest, an estimated "
                f"{entry['speedup']:.2f}× at {entry['tokens_per_call']:.2f} tokens/call"
            )
        lines.append(line)
    return lines
