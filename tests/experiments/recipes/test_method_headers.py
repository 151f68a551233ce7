"""Recipes of single methods are reproductions: claim, figure and report head each."""

import ast
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[3]
RECIPES = [p for p in (ROOT / "configs/methods").glob("*.py") if p.stem != "__init__"]
LINES = re.compile(
    r"^Paper:   (.+)\nHere:    (.+?)(?:\nReport:  (\S+))?\s*\Z", re.M | re.S
)


def faults(header: str) -> list[str]:
    """What is wrong with a recipe's header."""
    match = LINES.search(header)
    if match is None:
        return ["write the lines Paper:, Here: and Report:"]
    here, report = match[2], match[3]
    if report is None:
        return [] if here.startswith("not measured") else ["a figure has a report"]
    if not (ROOT / report).exists():
        return [f"{report} does not exist"]
    text = (ROOT / report).read_text()
    return [
        f"{x} is not in {report}"
        for x in re.findall(r"\d\.\d\d", here)
        if x not in text
    ]


@pytest.mark.parametrize("path", sorted(RECIPES), ids=lambda p: p.stem)
def test_header(path):
    assert faults(ast.get_docstring(ast.parse(path.read_text()))) == []


def test_fault_another_figure():
    report = "experiments/reports/spec_bench.md"
    lines = "Paper:   2x.\nHere:    {} tokens a call.\nReport:  {}"
    assert faults(lines.format("3.13", report)) == []
    assert faults(lines.format("9.87", report)) == [f"9.87 is not in {report}"]
    assert faults(lines.format("3.13", "none.md")) == ["none.md does not exist"]
    assert faults("Paper:   2x.\nHere:    3.13 tokens a call.") != []
    assert faults("Paper: 2x.") != []
