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
    names = {arm["name"] for arm in c.arms}
    assert {name for claim in c.claims for name in claim[:2]} <= names
    assert {*c.thresholds} < names


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
        ({"arms": ({"name": "1 a step", "schedule": (), "canvas": 6},)}, "use 7"),
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
def test_arms_that_are_trained_further(tmp_path):
    """Each has weights or a filter of its own; the oracle's texts are the reference's.

    Planted: arms of one model write the same texts.
    """
    c = small()
    names = ("1 a step", "entropy .5", "Learn2PD .96", "oracle filter")
    more = ("weight", "canvas")
    c.arms = tuple(
        {**arm, "lists": 6}
        for arm in recipe.get_config().arms
        if arm["name"] in names or {*arm} & {*more}
    )
    # 20 updates make no filter sure: all it is asked for is taken.
    eager = {"schedule": ({"name": "diffusion/learn2pd", "threshold": 0.0},)}
    c.arms = tuple({**a, **(eager if "filter" in a else {})} for a in c.arms)
    c.seeds, c.claims, c.thresholds = (0,), recipe.get_config().claims, ("none",)
    for group in (c.dparallel, c.tail):
        group.steps, group.batch, group.save_every, group.log_every = 4, 8, 2, 1
        group.rate, group.warmup, group.decay = 0.05, 1, 1
    c.dparallel.lists = c.learn2pd.lists = 6
    c.learn2pd.steps = 20
    store = RunFolder(tmp_path)
    titles = {x["title"]: x["lines"] for x in study.run(c, store)["tables"]}
    row = lambda name: store.get("rows", study.key(name, 0))
    one, oracle = row("1 a step"), row("oracle filter")
    field = lambda found, name: [found[rule][name] for rule in c.rules]
    assert field(one, "texts") == field(oracle, "texts")
    assert all(a <= b for a, b in zip(*map(_calls, (oracle, one))))
    assert _calls(row("Learn2PD .96")) == [6, 6] != _calls(one)
    texts = [field(row(f"dParallel, weight {w}"), "texts") for w in (2, 0)]
    assert texts[0] != texts[1] and field(row("entropy .5"), "texts") not in texts
    assert max(map(max, field(row("canvas of 14"), "calls"))) > 4
    claims = [line[0] for line in titles["Directions"]]
    assert "oracle filter in fewer calls than Learn2PD .96" in claims
    assert "canvas of 14, EoTP in fewer calls than canvas of 14" in claims
    before = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*.json")}
    (store.path / "rows" / f"{study.key('dParallel, weight 2', 0)}.json").unlink()
    study.run(c, store)  # from the checkpoints, to the same texts
    assert field(row("dParallel, weight 2"), "texts") == texts[0]
    assert sum(before.get(x) != x.stat().st_mtime_ns for x in [*before]) <= 4


def _calls(found):
    return [sum(fields["calls"]) for fields in found.values()]


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
