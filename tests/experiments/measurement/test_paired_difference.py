"""Differences of two methods on the texts that both have."""

from experiments.measurement import paired_difference


def row(method, task, calls, t=0.8):
    new = [12] * len(calls)
    named = {"method": method, "task": task, "temperature": t}
    return {**named, "new": new, "calls": calls}


ROWS = [
    row("a", "code", [3, 3, 4, 3]),
    row("b", "code", [6, 6, 5, 6]),
    row("a", "text", [6, 6, 6, 7]),
    row("b", "text", [6, 6, 6, 7]),
    row("a", "copy", [1, 1, 1, 1]),  # which b has not
    row("a", "code", [9, 9, 9, 9], t=0.0),
    row("b", "code", [6, 6, 6, 6], t=0.0),
]


def test_directions_by_hand():
    """All tasks of both: 96 tokens in 38 calls against 48; then 48 in 36 and 24."""
    found = paired_difference.table(ROWS, [("a", "b"), ("b", "a"), ("a", "absent")])
    assert found["heads"] == ["direction", "T", "difference", "holds"]
    lines = {tuple(line[:2]): line[2:] for line in found["lines"]}
    assert len(lines) == len(found["lines"]) == 4
    gap = 96 / 38 - 96 / 48
    assert lines["a ≥ b", "0.8"][0].startswith(f"{gap:+.2f} ± ")
    assert lines["a ≥ b", "0"] == [f"{48 / 36 - 48 / 24:+.2f} ± 0.00", "no"]
    assert lines["b ≥ a", "0"][1] == "yes"
    # Planted: with the task that one of them lacks, the gap would be 144 / 42 - 2.
    assert f"{144 / 42 - 2:+.2f}" not in lines["a ≥ b", "0.8"][0]
    # The third pair is said to be missing, and no other.
    missing = "not compared, for want of rows in common: a ≥ absent."
    assert found["notes"][1:] == [missing]
    assert len(paired_difference.table(ROWS, [("a", "b")])["notes"]) == 1


def test_seeds_are_no_further_prompts():
    """Three seeds of the same four texts leave the error of four texts."""
    pair = [("a", "b")]
    once = [row for row in ROWS if row["task"] == "code" and row["temperature"] == 0.8]
    seeds = [{**row, "seed": seed} for row in once for seed in range(3)]
    found = [paired_difference.table(rows, pair)["lines"] for rows in (once, seeds)]
    assert found[0] == found[1]
    # Planted: as twelve texts they would seem surer.
    texts = [{**row, "task": seed} for row in once for seed in range(3)]
    assert paired_difference.table(texts, pair)["lines"] != found[0]


def test_of_one_text_nothing_is_known_but_the_same():
    """A method beside itself is even."""
    found = paired_difference.table(ROWS, [("a", "a")])
    assert {line[-1] for line in found["lines"]} == {"even"}
