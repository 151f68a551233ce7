"""The tables of the stage `parallel_lists`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from experiments.benchmarks import list_rules
from experiments.studies import list_models
from experiments.studies.search_tables import table

Row = dict[str, Any]
Rows = Mapping[str, Sequence[Row]]  # by arm, one a seed
ONE, SEVERAL, ALL = "one", "several", "all"
TRAINED = ("weight", "canvas", "oracle")  # fields of arms that are no rule's schedule
CALLS = "calls"
LAWS = {
    "shuffle": list_rules.shuffle_accuracy,
    "replace_random": list_rules.replace_accuracy,
}


def made(config: Any, rows: Rows) -> list[dict[str, Any]]:
    """Make all tables."""
    rules = list(config.rules)
    found = [
        by_rule(config, rows, "Accuracy", "right"),
        by_rule(config, rows, "Tokens a call", "tokens", "calls"),
        orders(config, rows),
        closed_forms(config, rows),
        cheapest(config, rows),
    ]
    if any("texts_of" in arm for arm in config.arms):
        found.append(same_texts(config, rows))
    names = {arm["name"] for arm in config.arms}
    if {*config.thresholds} <= names:
        found.append(thresholds(config, rows))
    claims = [c for c in config.claims if {*c[:2]} <= names and group(rules, c[2])]
    return found + ([directions(config, rows, claims)] if claims else [])


def spread(values: Sequence[float], form: str = ".3f") -> str:
    """Write a mean and its standard error over seeds, where there are several."""
    mean = format(float(np.mean(values)), form)
    if len(values) < 2:
        return mean
    error = np.std(values, ddof=1) / np.sqrt(len(values))
    return f"{mean} ± {float(error):{form}}"


def pooled(row: Row, rules: Sequence[str], field: str, over: str = "") -> float:
    """Return a field's sum over all cases by their number, or by another field's."""
    total = sum(sum(row[rule][field]) for rule in rules)
    if over:
        return total / sum(sum(row[rule][over]) for rule in rules)
    return total / sum(len(row[rule][field]) for rule in rules)


def group(rules: Sequence[str], name: str) -> list[str]:
    """Return the rules of a name: itself, ALL, or those of ONE or SEVERAL answers."""
    if name == ALL:
        return list(rules)
    if name not in (ONE, SEVERAL):
        return [rule for rule in rules if rule == name]
    case = lambda rule: list_rules.cases(rule, 1, 0, (3,))[0]
    single = [len(list_rules.answers(case(rule))) == 1 for rule in rules]
    return [rule for rule, one in zip(rules, single) if one == (name == ONE)]


def by_rule(
    config: Any, rows: Rows, title: str, field: str, over: str = ""
) -> dict[str, Any]:
    """Make a line of every arm: its cost, and a figure of each rule."""
    rules, lines = list(config.rules), []
    for arm, seeds in rows.items():
        costs = [
            spread([pooled(row, rules, "calls") for row in seeds], ".2f"),
            spread([pooled(row, rules, "tokens", "calls") for row in seeds], ".2f"),
            spread([pooled(row, rules, "nodes", "tokens") for row in seeds], ".0f"),
        ]
        form = ".2f" if over else ".3f"
        cells = [
            spread([pooled(row, [rule], field, over) for row in seeds], form)
            for rule in rules
        ]
        lines.append([arm, *costs, *cells])
    heads = ("schedule", "calls", "tokens a call", "nodes a token", *rules)
    return table(title, heads, lines, NOTE)


def orders(config: Any, rows: Rows) -> dict[str, Any]:
    """Make a line of every arm: Kendall's tau of commits and positions."""
    lines = []
    for arm, seeds in rows.items():
        cells = []
        for rule in config.rules:
            taus = [row[rule]["tau"] for row in seeds if row[rule]["tau"] is not None]
            cells.append(spread(taus, ".2f") if taus else "–")
        lines.append([arm, *cells])
    heads = ("schedule", *config.rules)
    return table("Order: Kendall's tau with left to right", heads, lines, ORDER)


def closed_forms(config: Any, rows: Rows) -> dict[str, Any]:
    """Compare texts sampled at temperature 1 with independent tokens."""
    lines, size = [], list_models.sizes(config)[1]
    arms = {arm["name"]: arm for arm in config.arms}
    for rule in config.rules:
        case = list_rules.cases(rule, 1, 0, (config.length,))[0]
        right = list_rules.answers(case)
        nats = f"{list_rules.total_correlation(right):.2f}"
        law = f"{list_rules.one_shot(right):.3f}"
        lines.append([rule, "exact marginals, one shot", nats, law, "–"])
        for name, seeds in rows.items():
            if rule in LAWS and arms[name].get("temperature", 0.0) == 1.0:
                steps = arms[name]["schedule"][0].get("steps", 0) or size
                value = expected(LAWS[rule], size, steps)
                measured = spread([pooled(row, [rule], "right") for row in seeds])
                lines.append([rule, name, nats, f"{value:.3f}", measured])
    heads = ("rule", "schedule", "total correlation", "closed form", "measured")
    return table("Closed forms", heads, lines, CLOSED)


def expected(law: Callable[[Sequence[int]], float], size: int, steps: int) -> float:
    """Return a law's mean over the step that draws EOS, for a random order.

    Args:
        law: accuracy by the items of each step.
        size: positions of the canvas, of which the last one is EOS.
        steps: forwards at most, `llada`'s.
    """
    quotas = [size // steps + (i < size % steps) for i in range(steps)]
    total = 0.0
    for i, quota in enumerate(quotas):
        counts = [n - (i == j) for j, n in enumerate(quotas)]
        total += quota / size * law([n for n in counts if n])
    return total


def cheapest(config: Any, rows: Rows) -> dict[str, Any]:
    """Find each rule's schedule of most tokens a call that loses little accuracy."""
    lines = []
    own = [a for a in config.arms if not {*a} & {"texts_of", *TRAINED}]
    greedy = [a["name"] for a in own if not a.get("temperature", 0.0)]
    for rule in config.rules:
        rates = careful(config, rows, rule, [config.reference, *greedy])
        best = most(rates)
        pair = [
            np.mean([pooled(row, [rule], "right") for row in rows[name]])
            for name in (config.reference, best)
        ]
        cells = [f"{right:.3f}" for right in pair]
        lines.append([rule, best, *cells, spread(rates[best], ".2f")])
    heads = ("rule", "schedule", "reference", "accuracy", "tokens a call")
    note = f"The most tokens a call of those within {config.loss:g} of the reference."
    return table("Best schedule of each rule", heads, lines, note)


def careful(
    config: Any, rows: Rows, rule: str, names: Sequence[str]
) -> dict[str, list[float]]:
    """Return tokens a call by seed of the arms that lose little accuracy on a rule."""
    right = lambda name: np.mean([pooled(row, [rule], "right") for row in rows[name]])
    least = right(config.reference) - config.loss
    return {
        name: [pooled(row, [rule], "tokens", "calls") for row in rows[name]]
        for name in names
        if right(name) >= least
    }


def most(rates: Mapping[str, Sequence[float]]) -> str:
    """Return the arm of the most tokens a call; the first one of equals."""
    return max(rates, key=lambda name: float(np.mean(rates[name])))


def best_thresholds(config: Any, rows: Rows) -> tuple[dict[str, str], str]:
    """Return the best threshold of each rule, and the best one for all."""
    names, rules = list(config.thresholds), list(config.rules)
    kept = {rule: careful(config, rows, rule, names) for rule in rules}
    own = {rule: most(rates) if rates else names[0] for rule, rates in kept.items()}
    rates = {
        name: [pooled(row, rules, "tokens", "calls") for row in rows[name]]
        for name in names
        if all(name in kept[rule] for rule in rules)
    }
    return own, most(rates) if rates else names[0]


def thresholds(config: Any, rows: Rows) -> dict[str, Any]:
    """Compare the best threshold of each rule with the best one for all."""
    own, one = best_thresholds(config, rows)
    lines = []
    for rule, best in own.items():
        pair = [
            [pooled(row, [rule], "tokens", "calls") for row in rows[name]]
            for name in (best, one)
        ]
        gaps = [a - b for a, b in zip(*pair)]
        cells = [spread(pair[0], ".2f"), spread(pair[1], ".2f"), spread(gaps, "+.2f")]
        lines.append([rule, best, *cells])
    heads = ("rule", "best threshold", "tokens a call", f"of {one}", "more by")
    return table("Best threshold of each rule", heads, lines, BEST.format(config.loss))


def same_texts(config: Any, rows: Rows) -> dict[str, Any]:
    """Compare arms with those whose texts they must write."""
    lines = []
    for arm in config.arms:
        if "texts_of" not in arm:
            continue
        own, others = rows[arm["name"]], rows[arm["texts_of"]]
        pairs = [(row, first(other, row)) for row, other in zip(own, others)]
        both = [(a[rule], b[rule]) for a, b in pairs for rule in config.rules]
        texts = [x == y for a, b in both for x, y in zip(a["texts"], b["texts"])]
        more = [x > y for a, b in both for x, y in zip(a["calls"], b["calls"])]
        cells = []
        for side in (0, 1):
            seeds, rules = [pair[side] for pair in pairs], config.rules
            calls = [pooled(row, rules, "calls") for row in seeds]
            nodes = [pooled(row, rules, "nodes", "tokens") for row in seeds]
            cells += [spread(calls, ".2f"), spread(nodes, ".0f")]
        counts = [f"{sum(texts)}/{len(texts)}", f"{sum(more)}"]
        lines.append([arm["name"], arm["texts_of"], *counts, *cells])
    heads = ("schedule", "rule", "same texts", "texts with more calls")
    costs = ("calls", "nodes a token", "rule's calls", "rule's nodes a token")
    return table("Draft and verify", (*heads, *costs), lines, SAME)


def first(row: Row, other: Row) -> Row:
    """Return the first cases of each rule, as many as another row has."""
    count = {rule: len(other[rule]["texts"]) for rule in row}
    cut = lambda x, n: x[:n] if isinstance(x, list) else x
    return {
        rule: {name: cut(x, count[rule]) for name, x in fields.items()}
        for rule, fields in row.items()
    }


def directions(config: Any, rows: Rows, claims: Sequence[Any]) -> dict[str, Any]:
    """Test every claim that an arm is better than another on some rules."""
    lines = []
    for better, worse, name, field in claims:
        rules, sign = group(config.rules, name), -1 if field == CALLS else 1
        pairs = list(zip(rows[better], rows[worse]))
        gaps = [
            sign * (pooled(a, rules, field) - pooled(b, rules, field)) for a, b in pairs
        ]
        mean = float(np.mean(gaps))
        error = float(np.std(gaps, ddof=1)) / len(gaps) ** 0.5 if len(gaps) > 1 else 0
        holds = "yes" if mean > 2 * error else "no" if mean < -2 * error else "even"
        calls = [
            np.mean([pooled(row, rules, "calls") for row in rows[arm]])
            for arm in (better, worse)
        ]
        cells = [f"{calls[0]:.2f}", f"{calls[1]:.2f}", spread(gaps, "+.3f"), holds]
        words = "in fewer calls" if field == CALLS else "better"
        which = ALL if name == ALL else ", ".join(rules)
        lines.append([f"{better} {words} than {worse}", which, *cells])
    if {*config.thresholds} <= {*rows}:
        count = len({*best_thresholds(config, rows)[0].values()})
        cells = ["–", "–", f"{count} different", "yes" if count > 1 else "no"]
        lines.append(["no threshold is best for all rules", ALL, *cells])
    heads = ("claim", "rules", "calls", "calls of the other", "better by", "holds")
    return table("Directions", heads, lines, CLAIMED)


NOTE = (
    "±: standard error over training seeds, all of which write the same lists. calls: "
    "of the model for a text, EOS included in its tokens; nodes: positions that ran."
)
ORDER = (
    "tau-b of positions and the forwards that committed them, the mean over texts that "
    "took more than one: 1 from left to right, -1 from right to left."
)
CLOSED = (
    "Exact marginals: every token drawn from its law given that all right answers are "
    "equally likely; total correlation: in nats, what such a law diverges by at least. "
    "Other lines: texts at temperature 1 in random order, and the closed form of items "
    "that are drawn uniformly from those left, over the steps that may draw EOS."
)
SAME = (
    "On the lists that the schedule writes, the first of those. same texts: of all "
    "seeds and rules; calls and nodes as in the first table."
)
BEST = (
    "The most tokens a call of the thresholds that lose at most {:g} of the "
    "reference's accuracy on the rule; the other column is of the threshold that is "
    "best among those that do so on all rules (of the most careful one if none does)."
)
CLAIMED = (
    "better by: accuracy, or calls saved, paired by seed ± standard error; yes and no: "
    "by more than two of them."
)
