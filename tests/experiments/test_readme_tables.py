"""The README's tables are what the kept figures and the method files say."""

import itertools
import json
import pathlib

import pytest

import decoding
from decoding import catalogue
from experiments import readme_tables
from models.errors import ConfigError

MARKERS = (
    *readme_tables.WORKLOADS,
    *readme_tables.METHODS,
    *readme_tables.POLICIES,
)
ROOT = pathlib.Path(__file__).parents[2]


def row(method, tokens, speedup=None, **more):
    known = {"task": "code", "temperature": 0.8, "ci95": [tokens, tokens]}
    known |= {"loop_share": 0.0, "identical_to_plain": True, "guarantee": "LAW"}
    return (
        {"method": method, "tokens_per_call": tokens, "speedup": speedup} | known | more
    )


def report(rows, **more):
    return {"config": {}, "hardware": {}, "versions": {}, "rows": rows, **more}


def test_the_readme_is_generated():
    """Run `python -m experiments.readme_tables --readme=README.md` where this fails."""
    text = (ROOT / "README.md").read_text()
    assert readme_tables.fill(text, readme_tables.kept()) == text
    whole = (readme_tables.REPORTS / "workloads.md").read_text()
    assert (
        whole == f"{readme_tables.WHOLE}{readme_tables.table(readme_tables.kept())}\n"
    )
    for kept in readme_tables.kept():
        assert (readme_tables.REPORTS / f"{kept['name']}.md").exists()


def test_so_is_its_table_of_methods():
    """The same command writes it."""
    text, reports = (ROOT / "README.md").read_text(), readme_tables.kept()
    rows = text.splitlines(keepends=True)
    short = [row for row in rows if "`drafters/eagle3`" not in row]  # planted
    assert len(short) == len(rows) - 1
    assert readme_tables.fill("".join(short), reports) == text


def test_methods_stand_by_family():
    """A family is named once; planted: in the order of the names it is not."""
    lines = readme_tables.method_table().splitlines()[2:]
    own = [e for e in decoding.methods() if not catalogue.is_outside(e.name)]
    named = [line.split("|")[1].strip() for line in lines]
    groups = [
        (e.name.split("/")[0], e.family)
        for e, family in zip(own, named, strict=True)
        if family
    ]
    assert len(groups) == len({*groups}) < len(lines)
    every = [(e.name.split("/")[0], e.family) for e in sorted(own)]
    assert sum(a != b for a, b in itertools.pairwise(every)) >= len(groups)


def test_who_is_named():
    """Planted: a lossy method and one with other texts are best, and not named."""
    rows = [
        row("plain", 1.0, 1.0),
        row("slow", 3.0, 0.5),
        row("quick", 2.0, 1.5),
        row("lossy", 9.0, 9.0, guarantee="LOSSY"),
        row("wrong", 8.0, 8.0, identical_to_plain=False),
    ]
    kept = readme_tables.keep(report(rows), "some")
    line = readme_tables.table([kept]).splitlines()[2]
    assert "`quick` 1.50×" in line and "`slow` 3.00" in line and "`quick` 2.00" in line
    assert "wrong" not in line and "lossy" not in line
    rows[2] = row("quick", 2.0, 0.9, loop_share=0.5)
    line = readme_tables.table([readme_tables.keep(report(rows), "some")]).splitlines()[
        2
    ]
    assert "plain decoding (`quick` 0.90×)" in line and "50 % of it loops" in line


def test_a_method_is_named_once_at_both_widths():
    """The fastest by its width; planted: the next row is of the same method."""
    rows = [
        row("a", 3.0, 0.5, width="paper"),
        row("a", 2.5, 1.4, width="auto"),
        row("b", 2.0, 1.2, width="auto"),
    ]
    line = readme_tables.table([readme_tables.keep(report(rows), "some")])
    assert "`a`, auto 1.40× |" in line and line.count("`a` 3.00") == 1
    assert "| `b` 2.00" in line and "2.50" not in line


def test_the_short_table():
    """At T = 0.8 alone, and many tasks as one mean; planted: one of other texts."""
    few = [row("a", 2.0, 0.5), row("b", 1.0, 0.4), row("a", 9.0, 9.0, temperature=0.0)]
    many = [
        row(method, tokens + i, 0.5, task=f"task{i}")
        for method, tokens in (("a", 2.0), ("b", 1.0), ("c", 7.0))
        for i in range(5)
    ]
    many[-1]["identical_to_plain"] = False
    reports = [readme_tables.keep(report(x), n) for x, n in ((few, "few"), (many, "m"))]
    one, mean = readme_tables.short(reports).splitlines()[2:]
    assert one.startswith("| code | plain decoding (`a` 0.50×) | `a` 2.00 (2.00–2.00)")
    assert mean.startswith("| m, mean of 5 tasks | plain") and "`a` 4.00 |" in mean


def test_recorded_texts():
    rows = [
        {"method": m, "tokens_per_call": t, "ci95": [1, 2]}
        for m, t in (("plain", 1.0), ("a", 1.2), ("b", 1.6))
    ]
    kept = readme_tables.keep(report([], replay=rows), "replay_logs")
    line = readme_tables.table([kept]).splitlines()[2]
    assert line.startswith("| replay logs | recorded | – | `b` 1.60 (1.00–2.00) | `a`")
    with pytest.raises(ConfigError, match="no rows"):
        readme_tables.keep(report([]), "none")


def test_from_the_command_line(tmp_path, capsys):
    made = tmp_path / "report.json"
    made.write_text(json.dumps(report([row("a", 1.5, 1.2), row("b", 1.4, 1.1)])))
    readme = tmp_path / "README.md"
    stale = "{}\nstale\n{}\n" * 3
    readme.write_text(f"# x\n{stale}rest\n".format(*MARKERS))
    given = ["--add", str(made), "--name=mine", "--reports", str(tmp_path / "kept")]
    assert readme_tables.main([*given, "--readme", str(readme)]) == 0
    text = readme.read_text()
    assert "`a` 1.20×" in text and "stale" not in text and text.endswith("\nrest\n")
    assert "`drafters/eagle3`" in text and "LAW under h2o" in text
    for missing in MARKERS:
        readme.write_text(text.replace(missing, ""))
        assert readme_tables.main([*given, "--readme", str(readme)]) == 2
    readme.write_text("no markers")
    assert readme_tables.main([*given, "--readme", str(readme)]) == 2
    assert readme_tables.main(["--add", str(made)]) == 2
