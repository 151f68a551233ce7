"""What conformance tests share: the table of the laws held."""

import pytest

from decoding.conformance import laws

HEAD = (
    "| verifier | draws | topology, or planted fault | n | chi-square | df | p | due |"
)


@pytest.fixture
def law_table(record_property):
    """`(parts, counts, law, due) -> p`: a chi-square test, and a row of the table."""

    def add(parts, counts, law, due: str) -> float:
        statistic, freedom, p = laws.held_against(counts, law)
        names = [part.split("/")[-1] for part in parts]
        n, found = f"{int(counts.sum()):,}", [f"{statistic:.1f}", freedom, f"{p:.2g}"]
        cells = [*names, n, *found, due]
        record_property("law", "| " + " | ".join(map(str, cells)) + " |")
        return p

    return add


def pytest_terminal_summary(terminalreporter, config):
    """The laws that long tests held, as a table for a report."""
    if "long" not in config.option.markexpr:
        return
    ended = terminalreporter.stats
    reports = [r for key in ("passed", "failed") for r in ended.get(key, ())]
    rows = [v for r in reports for name, v in r.user_properties if name == "law"]
    if rows:
        terminalreporter.write_sep("-", "laws")
        rule = "|---" * HEAD.count(" | ") + "|---|"
        terminalreporter.write_line("\n".join([HEAD, rule, *rows]))
