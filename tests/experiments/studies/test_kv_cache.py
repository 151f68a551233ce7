"""The benchmark of cache policies: its arms, its figures, and a run on recall."""

import numpy as np
import pytest

from configs.studies import kv_cache as recipe
from decoding import Spec
from experiments.benchmarks import key_value
from experiments.run_folder import RunFolder
from experiments.studies import kv_cache as study
from models.errors import ConfigError
from models.synthetic import recall


def config(**fields):
    c = recipe.get_config()
    for name, value in fields.items():
        c[name] = value
    return c


def test_arms_are_tasks_by_views_policies_and_shares():
    """Each view has a dense arm; nats have no question, so one view."""
    c = config(tasks=("needle", "long_nats"), kept=(0.5, 0.1))
    arms = study.arms(c)
    each = 1 + 2 * len(c.policies)
    assert len(arms) == 3 * each and len(set(arms)) == len(arms)
    assert [a for a in arms if a[2] == study.DENSE] == [
        ("needle", "seen", "dense", 1.0),
        ("needle", "unseen", "dense", 1.0),
        ("long_nats", "seen", "dense", 1.0),
    ]
    assert study.spec(c, "dense", 1.0) == Spec("caches/dense")
    found = study.spec(c, "SnapKV", 0.5)
    assert found == Spec("caches/snapkv", window=16, budget=0.5)


def test_a_policy_that_guesses_gets_a_draft_model():
    """The recall model guesses itself; planted: a policy that needs none."""
    c = config()
    loaded = {"model": 1, "draft": 2, "recall": 3}
    guesses = study.spec(c, "SpecKV", 0.5)
    assert study.drafts_of(loaded, "needle", guesses) == {"draft": 2}
    assert study.drafts_of(loaded, "recall", guesses) == {"draft": 3}
    assert study.drafts_of(loaded, "needle", study.spec(c, "SnapKV", 0.5)) is None


def test_differences_are_paired():
    """Cases differ more than policies do; planted: cases of another order."""
    rng = np.random.default_rng(0)
    hard = rng.uniform(0, 1, 30)
    dense = [{"score": hard.tolist()}]
    less = [{"score": (hard - 0.1 + rng.normal(0, 0.01, 30)).tolist()}]
    gap = lambda other: study.figures(less, other)[1].split(" ± ")
    assert abs(float(gap(dense)[0]) + 0.1) < 0.01 and float(gap(dense)[1]) < 0.005
    turned = [{"score": hard[::-1].tolist()}]
    assert float(gap(turned)[1]) > 0.03


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
    c.facts, c.draft = 8, ""
    policies = {"SnapKV": {"name": "caches/snapkv", "window": 4, "kernel": 1}}
    policies["SpecKV"] = {"name": "caches/speckv", "window": 4, "kernel": 1}
    policies["random"] = {"name": "caches/random"}
    c.policies = policies
    lms = {"recall": recall.load(max_positions=512)}
    found = study.run(c, RunFolder(tmp_path), lms)
    seen = {line[0]: line for line in found["tables"][0]["lines"]}
    right = {name: float(line[2].split(" ")[0]) for name, line in seen.items()}
    assert right["dense"] == 1 and right["SnapKV"] > right["random"]
    assert right["SpecKV"] == 1  # the model guesses its own answer
    assert right["random"] < 1
    assert len(key_value.recalled(128, 8, 6)) == 6
