"""Tables of `parallel_lists`, by hand."""

import pytest

from configs.studies import parallel_lists as recipe
from experiments.benchmarks import list_rules
from experiments.studies import parallel_lists_tables as tables


def row(right, calls, texts=("a", "b"), tau=None, rules=("copy", "shuffle")):
    fields = {"right": right, "calls": calls, "tokens": [3, 3], "nodes": [30, 30]}
    return {rule: {**fields, "texts": list(texts), "tau": tau} for rule in rules}


@pytest.fixture
def config():
    c = recipe.get_config()
    c.rules, c.length = ("copy", "shuffle"), 3
    own = [
        a for a in c.arms if a["name"] in ("1 a step", "7 a step", "FreeDave, K = 2")
    ]
    c.arms = (*own, *(a for a in c.arms if a["name"] == "T = 1, one shot"))
    return c


@pytest.fixture
def rows(config):
    found = {
        "1 a step": [row([1, 1], [3, 3], tau=-0.5), row([1, 0], [3, 3], tau=0.5)],
        "7 a step": [row([1, 0], [1, 1]), row([0, 0], [1, 1])],
        "FreeDave, K = 2": [row([1, 1], [2, 4]), row([1, 0], [2, 2], ("a", "c"))],
        "T = 1, one shot": [row([0, 0], [1, 1]), row([0, 1], [1, 1])],
    }
    return {arm["name"]: found[arm["name"]] for arm in config.arms}


def test_figures_over_seeds(config, rows):
    """Accuracies 1 and .5: their mean and its error; planted: over cases."""
    lines = tables.by_rule(config, rows, "Accuracy", "right")["lines"]
    assert (
        lines[0]
        == ["1 a step", "3.00 ± 0.00", "1.00 ± 0.00", "10 ± 0"] + ["0.750 ± 0.250"] * 2
    )
    assert tables.spread([1, 1, 1, 0]) == "0.750 ± 0.250" != tables.spread([1, 0.5, 1])
    assert tables.spread([0.5]) == "0.500"
    rates = tables.by_rule(config, rows, "x", "tokens", "calls")["lines"]
    assert rates[2][4] == "1.25 ± 0.25"


def test_orders(config, rows):
    lines = tables.orders(config, rows)["lines"]
    assert lines[0] == ["1 a step", "0.00 ± 0.50", "0.00 ± 0.50"]
    assert lines[1] == ["7 a step", "–", "–"]


def test_closed_forms(config, rows):
    """One shot of three items and EOS; planted: the identity's mass is in no line."""
    lines = tables.closed_forms(config, rows)["lines"]
    assert [line[:2] for line in lines] == [
        ["copy", "exact marginals, one shot"],
        ["shuffle", "exact marginals, one shot"],
        ["shuffle", "T = 1, one shot"],
    ]
    assert lines[0][2:4] == ["0.00", "1.000"] and lines[1][3] == "0.224"
    assert lines[2][3:] == [f"{5 / 27:.3f}", "0.250 ± 0.250"]


def test_eos_takes_a_place_of_some_step():
    """Of 2, 1 and 1 positions EOS is in the first with 1/2; planted: in the last."""
    law = list_rules.shuffle_accuracy
    found = tables.expected(law, 4, 3)
    assert found == pytest.approx((2 * law([1, 1, 1]) + law([2, 1]) * 2) / 4)
    assert found != pytest.approx(law([2, 1]))
    assert tables.expected(law, 4, 4) == pytest.approx(law([1, 1, 1]))
    assert tables.expected(law, 4, 1) == pytest.approx(law([3]))


def test_best_schedules_lose_little(config, rows):
    """Planted: a loss that all are within."""
    lines = tables.cheapest(config, rows)["lines"]
    assert [line[:2] for line in lines] == [
        ["copy", "1 a step"],
        ["shuffle", "1 a step"],
    ]
    config.loss = 0.6
    assert tables.cheapest(config, rows)["lines"][0][1] == "7 a step"


def test_same_texts(config, rows):
    """3 of 4 texts a rule, one of which took more calls; fewer lists are compared."""
    (line,) = tables.same_texts(config, rows)["lines"]
    assert line[:4] == ["FreeDave, K = 2", "1 a step", "6/8", "2"]
    assert line[4] == "2.50 ± 0.50" and line[6] == "3.00 ± 0.00"
    small = row([1], [2], ("a",))
    assert tables.first(rows["1 a step"][0], small)["copy"]["texts"] == ["a"]
    planted = {**rows, "FreeDave, K = 2": [row([1], [2], ("b",))] * 2}
    assert tables.same_texts(config, planted)["lines"][0][2] == "0/4"


def test_directions(config, rows):
    """Gaps .5 and .5 hold, and do not the other way round (planted)."""
    found = tables.directions(
        config, rows, [("1 a step", "7 a step", "shuffle", "right")]
    )
    (line,) = found["lines"]
    assert line[2:] == ["3.00", "1.00", "+0.500 ± +0.000", "yes"]
    found = tables.directions(config, rows, [("7 a step", "1 a step", "one", "right")])
    assert found["lines"][0][1] == "copy" and found["lines"][0][-1] == "no"
    same = tables.directions(
        config, rows, [("1 a step", "1 a step", "several", "right")]
    )
    assert same["lines"][0][-1] == "even"
    calls = [("7 a step", "1 a step", "all", "calls")]
    (line,) = tables.directions(config, rows, calls)["lines"]
    assert line[:2] == ["7 a step in fewer calls than 1 a step", "all"]
    assert line[2:] == ["1.00", "3.00", "+2.000 ± +0.000", "yes"]
    planted = [("7 a step", "1 a step", "all", "right")]  # accuracy in place of calls
    assert tables.directions(config, rows, planted)["lines"][0][-1] == "no"


def test_no_threshold_is_best_for_all(config, rows):
    """Copy bears the low one, shuffle does not; planted: rules that both bear it."""
    config.thresholds = ("threshold .9", "threshold .5")
    both = row([1, 1], [3, 3])
    low = {
        "copy": row([1, 1], [1, 1])["copy"],
        "shuffle": row([0, 0], [1, 1])["shuffle"],
    }
    rows = {**rows, "threshold .9": [both, both], "threshold .5": [low, low]}
    own, one = tables.best_thresholds(config, rows)
    assert own == {"copy": "threshold .5", "shuffle": "threshold .9"}
    assert one == "threshold .9"
    lines = tables.thresholds(config, rows)["lines"]
    assert lines[0][1:] == [
        *("threshold .5", "3.00 ± 0.00", "1.00 ± 0.00"),
        "+2.00 ± +0.00",
    ]
    assert lines[1][4] == "+0.00 ± +0.00"
    line = tables.directions(config, rows, [])["lines"][-1]
    assert line[0] == "no threshold is best for all rules" and line[-1] == "yes"
    planted = {**rows, "threshold .5": [row([1, 1], [1, 1])] * 2}
    assert tables.directions(config, planted, [])["lines"][-1][-1] == "no"
    # Where all lose too much, the most careful one stands.
    none = {**rows, "threshold .9": [row([0, 0], [3, 3])] * 2}
    own, one = tables.best_thresholds(config, none)
    assert own["shuffle"] == one == "threshold .9"


def test_arms_of_other_models_are_no_schedule(config, rows):
    """Planted: the fewest calls, by the oracle, would be every rule's schedule."""
    arm = {"name": "oracle filter", "schedule": config.arms[0]["schedule"]}
    rows = {**rows, "oracle filter": [row([1, 1], [1, 1])] * 2}
    best = lambda: [line[1] for line in tables.cheapest(config, rows)["lines"]]
    config.arms = (*config.arms, {**arm, "oracle": True})
    assert best() == ["1 a step", "1 a step"]
    config.arms = (*config.arms[:-1], arm)
    assert best() == ["oracle filter"] * 2


def test_groups_of_rules():
    rules = recipe.get_config().rules
    single = ["copy", "sort", "reverse", "replace_index"]
    assert tables.group(rules, "one") == single
    assert tables.group(rules, "several") == ["shuffle", "replace_random"]
    assert tables.group(rules, "copy") == ["copy"] and tables.group(rules, "x") == []
    assert tables.group(rules, "all") == [*rules]


def test_all_tables(config, rows):
    titles = [found["title"] for found in tables.made(config, rows)]
    assert len(titles) == 7 and titles[-1] == "Directions"
    config.arms = config.arms[:1]
    one = {name: rows[name] for name in ("1 a step",)}
    assert len(tables.made(config, one)) == 5
