"""Rewards of Countdown's searches, and the claims that rows of a seed decide."""

import collections

from decoding.hypotheses.rank import Sample
from experiments.studies import searched_countdown as study
from training.data.problems import countdown

PROBLEM = countdown.Problem((2, 3, 4), 20)  # (2 + 3) * 4, or (3 + 2) * 4


def sample(text, ended=False):
    return Sample([], text, [], ended)


def test_rewards_of_steps():
    texts = [sample("3+2=5\n"), sample("4-2=2\n"), sample("3+2=5\n5*4=20", True)]
    texts += [sample("3+2=5\n", True), sample("3+")]
    assert study.step_reward([PROBLEM])(texts) == [1, 0, 1, 0, 1]
    assert study.step_reward([PROBLEM], True)(texts) == [0.5, 0, 1, 0, 0]
    # Planted: a text that ends half way is worth nothing to the checker.
    assert study.check_reward([PROBLEM])(texts)[2:4] == [1, 0]


def test_shuffled_rewards_are_as_frequent():
    """Values by text and kind: of 400 texts a share of right ones near the true 1/4."""
    ask = lambda samples: [float(s.text == "a") for s in samples]
    texts = [sample(x, ended) for ended in (True, False) for x in "abcd" * 100]
    mixed = study.shuffled(ask, 0)(texts)
    assert 0.15 < sum(mixed[:400]) / 400 < 0.35  # 4.6 deviations
    both = collections.Counter(zip(ask(texts), mixed))
    assert both[1.0, 0.0] > 100  # most right texts lose their worth
    # Planted: finished texts do not draw from beginnings.
    all_right = lambda samples: [float(s.ended) for s in samples]
    assert study.shuffled(all_right, 0)(texts) == all_right(texts)


def test_a_vote_counts_solutions():
    assert study.solution("1+2=3\n3+4=7\n") == study.solution("3+4=7\n1+2=3")
    assert study.solution("1+2=3\n") != study.solution("2+1=3\n")


def test_tables_by_hand():
    """A* solves all with the nodes of one sample of four, of which one is right."""
    row = {"count": [1] * 4, "rounds": 3}
    some = {**row, "right": [1, 0, 0, 0], "nodes": [40] * 4}
    all_right = {**row, "right": [1] * 4, "nodes": [10] * 4}
    names = ("greedy", study.BEST, "vote", "first finish", "CNTP", study.SHUFFLED)
    rows = {name: [some] for name in names}
    rows |= {name: [all_right] for name in (study.STEP, study.GRADED)}
    shown, claims = study.tables_of(rows, 4, [])
    by = {line[0]: line for line in shown["lines"]}
    assert by[study.GRADED][1:] == ["1.000", "1.000", "10", "3", "0.250"]
    assert by["vote"][-1] == "1.000"  # four samples
    found = {line[0]: line[1:] for line in claims["lines"]}
    better = found[f"{study.GRADED} ≥ best of n at its nodes"]
    assert better == ["+0.750 (+0.750 to +0.750)", "yes"]
    ratio = found[
        f"nodes of best of n at the accuracy of {study.GRADED} ÷ its own, above 1"
    ]
    assert ratio == ["4.00 (4.00 to 4.00)", "yes"]
    # Planted: the same nodes, and one problem of four.
    worse = found[f"{study.SHUFFLED} ≥ best of n at its nodes"]
    assert worse[1] == "no" and worse[0].startswith("-0.750")
