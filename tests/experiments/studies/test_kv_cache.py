"""The benchmark of cache policies: its arms, its figures, and a run on recall."""

import numpy as np
import pytest

from configs.studies import kv_cache as recipe
from configs.studies import kv_directions as second
from decoding import Spec
from experiments.benchmarks import key_value
from experiments.benchmarks.long_context import Case
from experiments.run_folder import RunFolder
from experiments.studies import kv_cache as study
from models.errors import ConfigError
from models.synthetic import recall


def config(**fields):
    c = recipe.get_config()
    for name, value in fields.items():
        c[name] = value
    return c


def test_arms_are_policies_by_shares():
    """The dense cache once; nats have no question, so one view."""
    c = config(kept=(0.5, 0.1))
    arms = study.arms(c)
    assert len(arms) == len(set(arms)) == 1 + 2 * len(c.policies)
    assert arms[0] == (study.DENSE, 1.0)
    assert study.viewed(c, "long_nats") == ["seen"]
    assert study.viewed(c, "needle") == ["seen", "unseen"]
    assert study.spec(c, "dense", 1.0) == Spec("caches/dense")
    found = study.spec(c, "SnapKV", 0.5)
    assert found == Spec("caches/snapkv", window=16, budget=0.5)


def test_an_unseen_question_is_read_behind_what_is_kept():
    """Planted: the question stays in the prompt."""
    case = Case((1, 2, 3, 4, 5), 3, (6, 7))
    assert study.seen_as(case, "seen") == case
    assert study.seen_as(case, "unseen") == Case((1, 2, 3), 3, (4, 5, 6, 7))
    assert study.seen_as(case, "unseen").prompt != case.prompt


def test_differences_are_paired():
    """Cases differ more than policies do; planted: cases of another order."""
    rng = np.random.default_rng(0)
    hard = rng.uniform(0, 1, 30)
    less = hard - 0.1 + rng.normal(0, 0.01, 30)
    gap = lambda other: study.figures(less, other)[1].split(" ± ")
    assert abs(float(gap(hard)[0]) + 0.1) < 0.01 and float(gap(hard)[1]) < 0.005
    assert float(gap(hard[::-1])[1]) > 0.03


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tasks": ("noodle",)}, "use some of"),
        ({"views": ("blind",)}, "use 'seen', 'unseen'"),
        ({"kept": (1.5,)}, "shares between 0 and 1"),
        ({"cases": 0}, "use one at least"),
    ],
)
def test_what_cannot_run_is_refused(fields, words):
    with pytest.raises(ConfigError, match=words):
        study.check(config(**fields))


@pytest.mark.long
@pytest.mark.kv
def test_a_run_on_the_recall_model(tmp_path):
    """Exact without evictions; a policy that sees the question keeps its answer.

    Planted: random slots, which lose some.
    """
    c = config(tasks=("recall",), kept=(0.25,), seeds=(0,), cases=6, length=128)
    c.facts = 8
    policies = {"SnapKV": {"name": "caches/snapkv", "window": 4, "kernel": 1}}
    policies["random"] = {"name": "caches/random"}
    c.policies = policies
    lms = {"recall": recall.load(max_positions=512)}
    found = study.run(c, RunFolder(tmp_path), lms)
    seen = {line[0]: line for line in found["tables"][0]["lines"]}
    right = {name: float(line[2].split(" ")[0]) for name, line in seen.items()}
    assert right["dense"] == 1 and right["SnapKV"] > right["random"]
    assert right["random"] < 1
    assert len(key_value.recalled(128, 8, 6)) == 6


def test_claims_are_paired_and_signed():
    """Nats shall be less, shares more, both case by case. Planted: the pair turned."""
    c = config(kept=(0.5,), tasks=("needle", "long_nats"))
    hard = np.linspace(0, 1, 20)
    other = {"needle seen": hard, "long_nats seen": hard}
    better = {"needle seen": hard + 0.1, "long_nats seen": hard - 0.1}
    noise = np.random.default_rng(0).normal(0, 0.01, 20)
    better = {name: list(score + noise) for name, score in better.items()}
    rows = {("model", "SnapKV", 0.5): {"score": better}}
    rows["model", "H2O", 0.5] = {"score": other}
    pairs = (("SnapKV", "H2O"), ("H2O", "SnapKV"))
    c.claims = tuple((task, *pair) for task in better for pair in pairs)
    lines = study.claimed(c, rows)["lines"]
    assert [line[-1] for line in lines] == ["yes", "no", "yes", "no"]
    assert abs(float(lines[0][3].split(" ")[0]) - 0.1) < 0.01
    c.claims += (("needle seen", "SnapKV", "noodle"), ("recall seen", *pairs[0]))
    assert study.claimed(c, rows)["lines"] == lines


def test_the_second_recipe_claims_what_it_runs():
    c = second.get_config()
    study.check(c)
    assert {task for task, *_ in c.claims} == {"needle seen", "long_nats seen"}
    assert all(
        sum(arm["layers"]) == pytest.approx(8)
        for arm in c.policies.values()
        if "layers" in arm
    )
