"""The stage `parallel_lists`: what it refuses, and a small run that is killed."""

import pytest

from configs.studies import parallel_lists as recipe
from experiments.run_folder import RunFolder
from experiments.studies import list_models
from experiments.studies import parallel_lists as study
from models.errors import ConfigError, MethodError


def config(**fields):
    c = recipe.get_config()
    for name, value in fields.items():
        c[name] = value
    return c


def test_the_recipe_is_the_designs(tmp_path):
    c = recipe.get_config()
    study.check(c)
    assert len(c.rules) * c.lists == 900 and list_models.sizes(c)[1] == 7
    keys = {study.key(arm["name"], seed) for arm in c.arms for seed in c.seeds}
    assert len(keys) == len(c.arms) * len(c.seeds)
    RunFolder(tmp_path).claim(c)


def test_lists_are_the_same_for_all():
    """Fewer are the first ones; no training draws them. Planted: another seed."""
    c = config()
    few, all_ = study.cases(c, "sort", 5), study.cases(c, "sort", 20)
    assert few == all_[:5] and len(all_) == 20
    stream = list_models.Stream(c, 0)
    seen = {
        tuple(row[:8]) for step in range(20) for row in stream.batch(step)["tokens"]
    }
    held = [tuple(list_models.prompt(case)) for case in all_]
    assert not seen & {*held}
    assert seen & {
        tuple(row[:8]) for row in list_models.Stream(c, 0).batch(3)["tokens"]
    }


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"rules": ("copies",)}, "use some of"),
        ({"rules": ()}, "use one at least of each"),
        ({"length": 1}, "use 2 to 25"),
        ({"length": 12}, "an index has one digit"),
        ({"reference": "2 at once"}, "must be one of them"),
        ({"arms": ({"name": "1 a step", "schedule": (), "texts_of": "x"},)}, "no arm"),
    ],
)
def test_what_cannot_run_is_refused(fields, words):
    with pytest.raises(ConfigError, match=words):
        study.check(config(**fields))


def test_a_schedule_that_is_none():
    arm = {"name": "1 a step", "schedule": ({"name": "drafters/plain"},)}
    with pytest.raises(MethodError):
        study.check(config(arms=(arm,)))


def small():
    c = config(rules=("copy", "shuffle"), length=3, lists=6, batch=6, seeds=(0, 1))
    names = ("1 a step", "7 a step", "FreeDave, K = 2")
    c.arms = tuple({**a, "lists": 6} for a in c.arms if a["name"] in names)
    c.network.width, c.network.layers, c.network.hidden = 16, 1, 24
    c.train.steps, c.train.batch, c.train.save_every = 6, 8, 2
    c.train.warmup, c.train.decay, c.train.log_every = 1, 2, 1
    return c


@pytest.mark.long
def test_a_run_resumes_byte_for_byte(tmp_path, monkeypatch):
    """A killed run's pieces are those of a whole one; planted: other weights."""
    c, whole, cut = small(), RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "cut")
    found = study.run(c, whole)
    assert found["tables"][5]["lines"][0][2:4] == ["24/24", "0"]
    batch = list_models.Stream.batch

    def killed(stream, step):
        if step == 5 and stream.seed == 1:
            raise KeyboardInterrupt
        return batch(stream, step)

    monkeypatch.setattr(list_models.Stream, "batch", killed)
    with pytest.raises(KeyboardInterrupt):
        study.run(c, cut)
    monkeypatch.setattr(list_models.Stream, "batch", batch)
    pieces = lambda store: {
        file.name: file.read_bytes() for file in (store.path / "rows").glob("*.json")
    }
    assert 0 < len(pieces(cut)) < len(pieces(whole))
    assert study.run(c, cut)["tables"] == found["tables"]
    assert pieces(cut) == pieces(whole)
    seeds = [pieces(whole)[f"{study.key('1 a step', seed)}.json"] for seed in c.seeds]
    assert seeds[0] != seeds[1]
