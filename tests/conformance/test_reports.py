"""A report of a paper's system begins with the paper's claim, and with its verdict.

Such a report has an arXiv id in its text, or the recipe that its title names has one.
Right under the title stands a table, a row a system: the paper's figure, its models and
hardware, our figure, which occurs below it, and one of four verdicts.
"""

import ast
import pathlib
import re

import pytest

import decoding

ROOT = pathlib.Path(decoding.__file__).parents[1]
REPORTS = sorted((ROOT / "experiments" / "reports").glob("*.md"))
ARXIV = re.compile(r"\b\d{4}\.\d{5}\b")
RECIPE = re.compile(r"configs/[\w/]+\.py")
FORM = ("system", "claim", "setup", "here", "verdict")
VERDICT = re.compile(
    r"(reproduced( in direction)?(: \S.*)?|(not reproduced|not testable here): \S.*)"
)


def is_system(text: str) -> bool:
    """Whether a report names a paper, itself or in its recipe's header."""
    recipes = RECIPE.findall(text.partition("\n")[0])
    sources = [ast.parse((ROOT / path).read_text()) for path in recipes]
    headers = [ast.get_docstring(source) or "" for source in sources]
    return any(ARXIV.search(named) for named in (text, *headers))


def faults(text: str) -> list[str]:
    """What is wrong with the beginning of a report of a system."""
    _, blank, *lines = text.splitlines()
    rows = []
    while lines and lines[0].startswith("|"):
        rows.append([cell.strip() for cell in lines.pop(0).strip("|").split("|")])
    if blank or len(rows) < 3 or tuple(rows[0]) != FORM:
        return [f"the title, a blank line, and a table of {', '.join(FORM)}"]
    rest, found = "\n".join(lines), []
    for row in rows[2:]:
        if len(row) != len(FORM) or not all(row):
            found.append(f"{row[0]}: fill {len(FORM)} cells; say what was not found")
            continue
        system, _, _, here, verdict = row
        if not VERDICT.fullmatch(verdict):
            found.append(f"{system}: no verdict is {verdict!r}")
        figures = re.findall(r"\d+\.\d+", here)
        found += [f"{system}: {x} is not below" for x in figures if x not in rest]
    return found


@pytest.mark.parametrize("path", REPORTS, ids=lambda path: path.stem)
def test_report(path):
    text = path.read_text()
    assert not is_system(text) or faults(text) == []


HEAD = "# `{}`: a report\n\n"
TABLE = "| system | claim | setup | here | verdict |\n|---|---|---|---|---|\n"
ROW = "| Medusa, arXiv 2401.10774 | 2.31 | Vicuna 7B | 1.61 | {} |\n"
TAIL = "\nIt has 1.61 tokens a call.\n"


def test_fault_report_without_claim_or_verdict():
    """Planted: no table, one further below, a row short, four wrong verdicts."""
    for verdict in (
        "reproduced",
        "reproduced in direction",
        "not reproduced: too small",
        "not testable here: no GPU",
    ):
        assert faults(HEAD + TABLE + ROW.format(verdict) + TAIL) == []
    for verdict in ("confirmed", "not reproduced", "not testable here:", "Reproduced"):
        assert faults(HEAD + TABLE + ROW.format(verdict) + TAIL) != []
    good = TABLE + ROW.format("reproduced")
    for text in (TAIL, TAIL + good, TABLE + TAIL, good.replace("Vicuna 7B", "") + TAIL):
        assert faults(HEAD + text) != []
    assert faults(HEAD + good + TAIL.replace("1.61", "1.62")) == [
        "Medusa, arXiv 2401.10774: 1.61 is not below"
    ]


def test_systems_are_told_by_their_papers():
    """Planted: an engineering report, which cites none."""
    assert is_system(HEAD.format("configs/heads/eagle3.py"))
    assert is_system(HEAD + "after Medusa (arXiv 2401.10774)")
    assert not is_system(HEAD.format("configs/studies/block_cost.py"))
    whole = {path.stem: path.read_text() for path in REPORTS}
    systems = [name for name, text in whole.items() if is_system(text)]
    for name in systems:  # it stays one without its table
        kept = [x for x in whole[name].splitlines() if not x.startswith("|")]
        assert is_system("\n".join(kept)), name
    assert {"compare", "exits", "judge", "replay", "spec_bench"} <= set(systems)
    assert not {"block_cost", "preflight", "reliability"} & set(systems)
