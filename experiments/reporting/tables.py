"""Texts that report.md and the page share: table cells, terms, provenance, advice."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from experiments import stage
from experiments.reporting import verdict

HEADS = (
    "method",
    "width",
    "task",
    "T",
    "tokens/call",
    "loop-free",
    "speed-up",
    "with prefill",
    "tokens/s",
    "MBU",
    "draft share",
    "loop share",
    "identical",
    "ties",
    "compile s",
)
WORDS = 4  # leading columns of HEADS that hold words


class Term(NamedTuple):
    """A word of the reports, explained in a line where it first occurs."""

    pattern: str
    text: str


TERMS = (
    Term(
        r"\bwidth\b",
        "width: *auto*, a controller chooses the size of each round’s block, plain "
        "decoding included; *paper*, the size that the method’s paper uses.",
    ),
    Term(
        r"\bblocks?\b",
        "wide blocks: a block holds the tokens that one target call checks at once. A "
        "wide one takes longer than a call of one token, so it pays only where enough "
        "of its drafts are committed.",
    ),
    Term(
        r"\bloop(s\b|ing\b| share|-free)",
        "loop share: the part of a text inside one exact repetition that fills at "
        "least 30 % of it. Small models’ greedy texts loop, which flatters every "
        "drafter; *loop-free* figures leave such texts out.",
    ),
    Term(
        r"\bMBU\b",
        "MBU, memory bandwidth utilisation: the bytes that a round must read (weights, "
        "live keys and values, draft weights) ÷ (read bandwidth × time).",
    ),
    Term(
        r"\bLAW\b",
        "LAW: a guarantee that texts follow plain decoding’s probabilities. Under "
        "such a verifier they need not be the same texts.",
    ),
    Term(
        r"\b(LOSSY|lossy)\b",
        "LOSSY: no guarantee; the texts are not those of plain decoding. A *lossy* row "
        "has beside it the nats a token of its texts under the whole target, and those "
        "of plain decoding’s texts; where it has none its quality was not measured. "
        "Nats are no measure of use.",
    ),
)


class Unexplained:
    """The terms that a page has not explained so far, in the order of `TERMS`."""

    def __init__(self) -> None:
        self.terms = list(TERMS)

    def explain(self, text: str) -> list[str]:
        """Return a line for each term that first occurs in `text`, HTML or plain."""
        text = re.sub(r"<[^>]*>", " ", text)
        lines: list[str] = []
        while found := [t for t in self.terms if re.search(t.pattern, text)]:
            self.terms = [term for term in self.terms if term not in found]
            lines += [term.text for term in found]
            text = " ".join(lines)  # a line may hold other terms
        return lines


def cells(row: dict[str, Any]) -> list[str]:
    """Format a row's cells, in the order of HEADS."""
    low, high = row["ci95"]
    free = row["tokens_per_call_loop_free"]
    identical = row["identical_to_plain"]
    return [
        row["method"],
        verdict.width(row),
        row["task"],
        f"{row['temperature']:g}",
        f"{row['tokens_per_call']:.2f} ({low:.2f}–{high:.2f})",
        "–" if free is None else f"{free:.2f}",
        _spread(row, "speedup", "{:.2f}", "×"),
        _spread(row, "speedup_with_prefill", "{:.2f}", "×"),
        _spread(row, "tokens_per_s", "{:.0f}"),
        f"{row['mbu']:.2f}",
        "–" if row["draft_share"] is None else f"{100 * row['draft_share']:.0f} %",
        f"{100 * row['loop_share']:.0f} %",
        _texts_alone(row) if identical is None else "yes" if identical else "NO",
        f"{row['ties']}/{row['compared_tokens']}",
        f"{row['compile_seconds']:.1f}",
    ]


def _texts_alone(row: dict[str, Any]) -> str:
    """Format what a row promises whose texts need not equal plain decoding's."""
    if row["guarantee"] != "LOSSY":
        return str(row["guarantee"])
    if "nats_per_token" not in row:  # older runs
        return "lossy"
    own, plain = row["nats_per_token"], row["plain_nats_per_token"]
    return f"lossy, {own:.2f} nats (plain {plain:.2f})"


def _spread(row: dict[str, Any], field: str, form: str, unit: str = "") -> str:
    """Format a time with its quartiles over repeats, where there are several."""
    text, ends = form.format(row[field]) + unit, verdict.quartiles(row, field)
    return text if ends is None else f"{text} ({'–'.join(map(form.format, ends))})"


def call_times(times: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Format the call times of a model by block width: width, ms, plain calls."""
    lines = []
    for entry in times:
        ms = f"{entry['ms']:.2f}"
        if "ms_quartiles" in entry:  # older runs have medians alone
            low, high = entry["ms_quartiles"]
            ms += f" ({low:.2f}–{high:.2f})"
        lines.append([f"{entry['width']}", ms, f"{entry['plain_calls']:.2f}"])
    return lines


def title(report: dict[str, Any]) -> str:
    """Return the heading of a report."""
    return stage.of(report).title.format(report["config"].get("model", ""))


def provenance(report: dict[str, Any]) -> list[str]:
    """Describe the machine, the versions and the texts of a report."""
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
    return lines


def advice(report: dict[str, Any]) -> list[str]:
    """Suggest a fixed block width for each method, from the call times by width.

    [] where times are not to be trusted, or where rows of automatic width answer it.
    """
    rows, lines = report["rows"], []
    if verdict.strays(rows) or any(verdict.width(r) == verdict.AUTO for r in rows):
        return []
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
