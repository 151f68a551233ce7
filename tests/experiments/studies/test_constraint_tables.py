"""Tables of constrained decoding: figures of bars, refusals, differences, quantiles."""

from experiments.studies import constraint_tables


def row(name, **fields):
    base = {"name": name, "subset": "s", "features": ["pattern"], "seconds": 0.1}
    base |= {"mib": 1.0, "expected": "10", "ours": "10", "theirs": "10"}
    return base | {"states": 30, "need": 2, "their_seconds": 0.01} | fields


def refused(name, message, **fields):
    dropped = row(name, ours="--", refused=message, **fields)
    return {
        key: value for key, value in dropped.items() if key not in ("states", "need")
    }


ROWS = [
    row("good"),
    row("strict", ours="00"),
    row("loose", ours="11", theirs="00", features=["format"]),
    row("deep", need=99),
    row("slow", seconds=6.0, mib=2000.0, their_refusal="no"),
    refused("gone", "the JSON schema at /: 'contains' is not supported; state"),
]


def test_figures_of_the_bars():
    """Planted: a deep stack is not held, and a refusal of theirs is left out."""
    figures = constraint_tables.verdict_summary(ROWS)
    assert figures["schemas"] == 6 and figures["held"] == 4
    assert figures["llguidance_accepts"] == 5 and figures["held_of_llguidance"] == 3
    assert figures["alike"] == 1 and figures["with_instances"] == 3
    assert figures["invalid_accepted"] == 1 and figures["valid_refused"] == 1
    assert figures["invalid_accepted_llguidance"] == 0
    assert figures["valid_refused_llguidance"] == 1
    assert figures["over_seconds"] == figures["over_memory"] == 1
    assert constraint_tables.verdict_summary([row("deep", need=99)])["held"] == 0
    bare = row("bare", expected="", ours="", theirs="")  # alike, but nothing to judge
    assert constraint_tables.verdict_summary([bare])["alike"] == 0


def test_tables_of_verdicts():
    """Planted: a subset's line holds another one's schemas."""
    rows = [*ROWS, row("other", subset="t")]
    subsets, refusals, compiling, misses = constraint_tables.of_verdicts(rows)
    assert [line[:2] for line in subsets["lines"]] == [
        ["s", "6"],
        ["t", "1"],
        ["all", "7"],
    ]
    assert subsets["lines"][0] != subsets["lines"][2]
    reasons = {line[0]: line[1:] for line in refusals["lines"]}
    assert reasons["contains: is not supported"] == ["1", "1", "gone"]
    assert reasons["more than 32 calling states"] == ["1", "1", "deep"]
    assert "Schemas over 5 s: 1 (slow)" in compiling["notes"][0]
    lines = {line[0]: line[1:] for line in misses["lines"]}
    assert lines == {"pattern": ["6", "1", "1", "0"], "format": ["1", "1", "0", "1"]}
    assert "2 schemas, 3 instances, ours right on 1" in misses["notes"][0]


def test_quantiles_of_nothing_are_dashes():
    assert constraint_tables.quantiles([], ".1f", (0.5, 1)) == ["–", "–"]
    assert constraint_tables.quantiles([1, 3, float("nan")], ".0f", (0.5, 1)) == [
        "2",
        "3",
    ]


def cost(**fields):
    base = {"name": "a", "cold": 0.02, "machine": 0.01, "warm": 0.001, "states": 100}
    base |= {"device_bytes": 2048, "disk_bytes": 1024, "tables": 0.01, "need": 1}
    return base | {"mask": 20.0, "logsumexp": 4.0, "advance": 1.0} | fields


def test_masks_are_held_to_the_bar():
    """21 µs are the bar at a sum of 4 µs. Planted: a mask of 22."""
    rows = [cost(), cost(mask=22.0), {"name": "b", "refused": "x", "cold": 0.1}]
    costs = {4096: ({"scratch": 1.0, "disk": 0.25}, rows)}
    compiling, sizes, masks = constraint_tables.of_costs(costs)
    assert compiling["lines"][0][:4] == ["4,096", "1.00", "0.25", "2 of 3"]
    assert compiling["lines"][0][4] == "20.0 / 20.0 / 20.0"
    assert sizes["lines"][0][:4] == ["4,096", "100", "100", "100"]
    assert masks["lines"][0][4] == "1 of 2"


def test_a_line_for_every_engine():
    """Planted: an engine that is not installed has no figures."""
    walk = {
        "name": "a",
        "expected": "110",
        "verdicts": "101",
        "unmasked": "110",
        "seconds": 0.01,
        "mib": 1,
    }
    walk |= {"masks": [1.0, 3.0], "commits": [1.0, 1.0]}
    rows = [walk, {"name": "b", "refused": "x"}, {"name": "c", "stopped": "over 9 s"}]
    peers = {
        "one": {"version": "1.2", "setup": 0.5, "rows": rows},
        "two": {"version": None, "setup": None, "rows": []},
    }
    (made,) = constraint_tables.of_peers(peers, 4096)
    one, two = made["lines"]
    assert one[:3] == ["one 1.2", "1 of 3", "1"]
    assert one[3:5] == ["1 schemas, 1 of 2", "1 schemas, 1 of 1"]
    assert one[5] == "1" and one[8] == "2.0 / 2.0 / 3.0"
    assert two[1] == "not installed" and len(two) == len(made["heads"]) == len(one)


def test_speeds_are_shares_of_plain():
    """Planted: the share of another batch size."""
    rows = [
        {"arm": "plain", "batch": 1, "runs": [[1.0, 100], [1.0, 80]], "host_syncs": 0},
        {"arm": "device", "batch": 1, "runs": [[2.0, 90]], "host_syncs": 0},
        {"arm": "plain", "batch": 8, "runs": [[1.0, 900]], "host_syncs": 0},
    ]
    (made,) = constraint_tables.of_speed(rows, "plain")
    assert [line[5] for line in made["lines"]] == ["1.00", "0.50", "1.00"]
