"""Training draft heads: resume, precision, the whole stage, what recipes agree on."""

import importlib
import inspect
import json
import pathlib
import shutil
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import configs.heads
from experiments.measurement import machine
from experiments.recipes import defaults, settings
from experiments.reporting import report
from experiments.run_folder import RunFolder
from experiments.studies import evaluate
from experiments.trainings import draft_heads
from models.errors import CheckpointError, ConfigError
from models.heads.formats import native
from tests.training.small_trainings import recipe, small_target
from training.data import text_corpus
from training.loop import train_step
from training.objectives.heads import eagle3, hydra
from training.runs import draft_head_run, scaffold
from training.teacher import outputs


def test_training_resumes_and_leaves_the_target_alone(small, corpus, tmp_path):
    """Stopped at step 4 of 8 and begun again: the same weights, bit for bit."""
    c = recipe("eagle3", corpus)
    c.draft_vocab, c.objective.steps, c.train.evaluate_every = 64, 1, 0
    before = jax.tree.map(lambda x: np.asarray(x).tobytes(), small.params)
    whole = draft_head_run.Training(c, tmp_path / "whole", small)
    done = whole.fit()
    part = draft_head_run.Training(c, tmp_path / "part", small)

    class Killed(Exception):
        pass

    class Ending(type(whole.stream)):
        def batch(self, step, process=0, processes=1):
            if step == 4:
                raise Killed
            return super().batch(step, process, processes)

    fields = (part.stream.corpus, part.stream.stages, c.seed)
    part.stream = Ending(*fields, numbered=True)
    with pytest.raises(Killed):
        part.fit()
    again = draft_head_run.Training(c, tmp_path / "part", small).fit()
    assert done.step == again.step == 8
    for a, b in zip(jax.tree.leaves(done.params), jax.tree.leaves(again.params)):
        np.testing.assert_array_equal(a, b)
    fresh = jax.tree.leaves(whole.params)
    moved = [not np.array_equal(a, b) for a, b in zip(fresh, jax.tree.leaves(done))]
    assert any(moved)  # planted: a run that trains nothing would resume as well
    after = jax.tree.map(lambda x: np.asarray(x).tobytes(), small.params)
    assert before == after
    shutil.rmtree(tmp_path / "part")


@pytest.mark.long
def test_whole_conversations_are_trained_on_and_measured(small, tmp_path):
    """A row begins as its conversation does. Planted: rows cut anywhere measure other
    hits."""
    lines = [
        {
            "messages": [
                {"role": "user", "content": f"What is {i} and {i}?"},
                {"role": "assistant", "content": f"It is {2 * i}. " * (i % 5 + 1)},
            ]
        }
        for i in range(60)
    ]
    for split in ("train", "validation"):
        (tmp_path / "talk" / split).mkdir(parents=True)
        file = tmp_path / "talk" / split / "a.jsonl"
        file.write_text("\n".join(map(json.dumps, lines)))
    c = recipe("eagle", str(tmp_path / "talk"))
    c.data.update(whole=True, window=127, tokens=512)
    c.train.evaluate_every = 0
    c.evaluate.update(tokens=256, window=128)
    own = draft_head_run.Training(c, tmp_path / "run", small)
    assert set(own.stream.batch(0)) == {"tokens", "segments", "loss_mask", "row"}
    trained = own.fit().params
    found = own.hits(trained, 0.0)
    own.config.data.whole = False
    assert found != own.hits(trained, 0.0)


@pytest.mark.long
def test_untrained_params_leave_the_device(small, corpus, tmp_path):
    """While it trains. Planted: the params as they were initialised."""
    c = recipe("medusa", corpus)
    own = draft_head_run.Training(c, tmp_path, small)
    there = lambda: [isinstance(x, jax.Array) for x in jax.tree.leaves(own.params)]
    assert all(there())
    figures = own.untrained()
    own.fit()
    assert not any(there())
    own.measured = None  # a second sitting measures nothing again
    assert own.untrained() == figures and figures["tau"] >= 1


RECIPES = sorted(
    path.stem
    for path in pathlib.Path(configs.heads.__file__).parent.glob("*.py")
    if path.stem
    not in ("__init__", "block_ablation", "compare", "eagle_gap", "head_recipes")
)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=() if n in ("eagle3", "medusa2") else pytest.mark.long)
        for n in RECIPES
    ],
)
def test_every_head_trains_in_mixed_precision(name, small, corpus, tmp_path):
    """The program is built with bfloat16 inside, and changes the heads as they are."""
    c = recipe(name, corpus)
    c.train.compute_dtype = "bfloat16"
    training = draft_head_run.Training(c, tmp_path, small)
    optimizer = scaffold.optimizer(c.train, training.stream.steps)
    target = outputs.teacher(small.model, training.objective.taps)
    step = train_step.make_step(
        training.objective, optimizer, target=target, compute_dtype="bfloat16"
    )
    state = train_step.first_state(training.params, optimizer, False)
    batch = next(text_corpus.DataIterator(training.stream))
    shapes = jax.eval_shape(step, state, batch, small.params)[0]
    before = jax.tree.map(lambda x: (x.shape, x.dtype), state)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), shapes) == before
    assert jnp.bfloat16 not in {x.dtype for x in jax.tree.leaves(shapes.params)}


@pytest.mark.long
def test_losses_in_mixed_precision_are_nearly_those_in_float32(small, corpus, tmp_path):
    """To 1 %: bfloat16 rounds to 0.4 %, and a mean over positions averages it.

    Losses that are equal would show that nothing was rounded.
    """
    training = draft_head_run.Training(recipe("eagle3", corpus), tmp_path, small)
    optimizer = scaffold.optimizer(training.config.train, training.stream.steps)
    target = outputs.teacher(small.model, training.objective.taps)
    state = train_step.first_state(training.params, optimizer, False)
    batch, found = next(text_corpus.DataIterator(training.stream)), {}
    for dtype in ("", "bfloat16"):
        step = train_step.make_step(
            training.objective, optimizer, target=target, compute_dtype=dtype
        )
        metrics = jax.jit(step)(state, batch, small.params)[1]
        found[dtype] = float(metrics["loss"])
    assert found["bfloat16"] == pytest.approx(found[""], rel=0.01)
    assert found["bfloat16"] != found[""]


def test_the_recipe_names_the_dtype(small, corpus, tmp_path):
    c = recipe("medusa", corpus)
    c.train.compute_dtype = "float8"
    with pytest.raises(ConfigError, match="compute_dtype='float8'"):
        draft_head_run.Training(c, tmp_path, small).fit()


def test_greedily_lossless_verifiers_have_one_row():
    """A lossy one has its own; above T = 0 all have."""
    one = recipe("hydra", "")
    one.beside.short = {"topology": {"name": "topologies/chain", "length": 1}}
    one.beside.rejection = {"verifier": "verifiers/rejection"}
    one.beside.lossy = {"verifier": {"name": "verifiers/lud", "threshold": 0.9}}
    named = {"hydra": draft_head_run.untrained(one), **draft_head_run.others(one)}
    assert named["rejection"] != named["hydra"] != named["short"]
    assert draft_heads._distinct(named, 0.8) == named
    assert set(draft_heads._distinct(named, 0.0)) == {"hydra", "short", "lossy"}


def test_the_stage_trains_decodes_and_reports(small, corpus, tmp_path, monkeypatch):
    """A recipe beside plain decoding; the second sitting repeats nothing."""
    c = recipe("compare", corpus)
    c.recipes = ("hydra",)
    c.update(temperatures=(0.8,), prompts=1, prompt_tokens=16, max_new_tokens=8)
    c.repeats, c.tasks = 1, ("text",)
    c.directions = (("hydra", "plain"),)
    load = settings.load

    def loaded(path):
        one = load(path)
        one.init.heads, one.tree_nodes = 2, 4
        one.method.topology = {"name": "topologies/chain", "length": 2}
        one.beside.short = {"topology": {"name": "topologies/chain", "length": 1}}
        return one

    monkeypatch.setattr(settings, "load", loaded)
    monkeypatch.setattr(machine, "last_level_cache", lambda: 2**20)  # small arrays
    store = RunFolder(tmp_path)
    found = draft_heads.run(c, store, small)
    assert [h["recipe"] for h in found["heads"]] == ["hydra"]
    assert found["heads"][0]["draft_flops"] > 0
    named = {row["method"]: row for row in found["rows"]}
    assert set(named) == {"plain", "hydra", "hydra_short"}
    assert named["hydra"]["identical_to_plain"]
    assert named["hydra_short"]["identical_to_plain"]
    assert [named[n]["nodes"] for n in ("hydra_short", "hydra")] == [2, 4]
    report.write(store, settings.plain(c), found)
    text = (tmp_path / "report.md").read_text()
    assert "## Training" in text and "| hydra ≥ plain | 0.8 | " in text
    drawn = {path.stem for path in (tmp_path / "figures").glob("*.png")}
    assert {"training", "loss", "pace", "mfu", "first_guess", "after"} <= drawn
    assert 0 < found["heads"][0]["mfu"] and found["heads"][0]["tokens_per_s"] > 0
    monkeypatch.setattr(
        draft_head_run, "run", None
    )  # planted: training again would fail
    assert draft_heads.run(c, store, small)["heads"] == found["heads"]
    about = native.describe(tmp_path / "heads" / "hydra-s0" / "export")
    assert about["head"] == "hydra" and len(about["hits"]) == 2
    figures = json.loads((tmp_path / "heads" / "hydra-s0" / "figures.json").read_text())
    assert figures["steps"] == 8
    assert [row["step"] for row in figures["curve"]] == [4, 8]
    for measured in (figures["untrained"], figures["trained"], *figures["curve"]):
        for depth in range(2):
            kinds = [k for k in draft_head_run.TOPS if k <= c.evaluate.ranks]
            tops = [measured[f"top{k}_{depth}"] for k in kinds]
            assert len(tops) > 1 and [0.0, *tops, 1.0] == sorted([0.0, *tops, 1.0])
        taken = [measured["after_0"], measured["after_0"] * measured["after_1"]]
        assert measured["tau"] <= 1 + sum(taken) + 1e-6  # less what a limit cut off
    card = (tmp_path / "heads" / "hydra-s0" / "export" / "README.md").read_text()
    assert f"{figures['parameters']:,} parameters" in card and "seed 0" in card

    # The export says how it is decoded with: any evaluation takes it by its folder.
    again = defaults.get_config()
    again.update({n: c[n] for n in ("temperatures", "prompts", "repeats", "tasks")})
    again.update({n: c[n] for n in ("prompt_tokens", "max_new_tokens")})
    with again.unlocked():
        again.trained = {"mine": str(tmp_path / "heads" / "hydra-s0" / "export")}
    again.methods, again.curve = ("plain", "mine"), False
    rows = evaluate.run(again, RunFolder(tmp_path / "again"), small)["rows"]
    mine = {row["method"]: row for row in rows}["mine"]
    assert mine["identical_to_plain"]
    for same in ("tokens_per_call", "nodes", "accepted_by_depth"):
        assert mine[same] == named["hydra"][same]


def test_the_label_of_a_loss_reads_the_config(small, corpus, tmp_path):
    """Planted: the params alone, without the config, have the form's default."""
    c = recipe("p_eagle", corpus)
    own = draft_head_run.Training(c, tmp_path, small)
    assert f" {c.init.depths} depths" in own.objective.label(own.params)
    alone = own.kind.objective(small.model, **c.objective.to_dict())
    assert " 8 depths" in alone.label(own.params) != own.objective.label(own.params)


def test_the_full_comparison():
    """Every head once, some with three seeds, what depends on the data following."""
    c = importlib.import_module("configs.heads.compare").get_config()
    assert [name for _, name, _ in draft_heads.plan(c)] == list(c.recipes)
    c.full, c.train.rate = True, 0.002
    listed = draft_heads.plan(c)
    every = {name: recipe for _, name, recipe in listed}
    # Other recipes of one objective.
    kinds = {"eagle2": "eagle", "hydra_pp": "hydra", "jetspec": "dflash"}
    assert {kinds.get(name, name) for name in every} == set(draft_head_run.names())
    assert len(listed) == len(every) + 2 * len(c.recipes)
    assert all(recipe.data.tokens == 2_000_000 for recipe in every.values())
    rows = 2_000_000 // 256  # planted: 500,000 tokens' would be what the file computes
    assert every["falcon"].objective.rows == rows
    assert every["medusa2"].objective.warm == rows // 5
    rates = [every[name].train.rate for name in ("ppd", "medusa", "falcon")]
    assert rates == [0.02, 0.004, 0.002]  # twice their own


def test_a_head_in_a_comparison_trains_by_its_own_recipe(monkeypatch):
    """But for what the comparison sets other than usual; planted: it sets as usual."""
    sound = draft_heads.settings.head

    def three_rows(*given):  # other than usual
        recipe = sound(*given)
        recipe.data.batch = 3
        return recipe

    monkeypatch.setattr(draft_heads.settings, "head", three_rows)
    c = importlib.import_module("configs.heads.compare").get_config()
    c.full = True
    own = importlib.import_module("configs.heads.dspark").get_config()
    schedule = lambda: next(r for _, n, r in draft_heads.plan(c) if n == "dspark")
    assert schedule().train.to_dict() == own.train.to_dict() != c.train.to_dict()
    assert schedule().data.batch == 3 != c.data.batch
    c.train.clip, c.train.muon_rate, c.data.batch = 0.1, 2 * c.train.muon_rate, 4
    changed = schedule()
    assert (changed.train.clip, changed.data.batch) == (0.1, 4)
    assert changed.train.muon_rate == 2 * own.train.muon_rate
    assert changed.train.optimizer == own.train.optimizer != c.train.optimizer


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("medusa", "blocks", 2),
        ("medusa2", "blocks", 2),
        ("hydra", "blocks", 3),
        ("falcon", "k", 3),
        ("hidden_transfer", "layer", 1),
        ("eagle3", "taps", (0, 2, 3)),
    ],
)
def test_measured_and_decoded_as_trained(name, field, value):
    """What an objective is given its guesses and its drafter are given, too.

    Planted: a field of the loss alone, which a drafter does not have.
    """
    c = importlib.import_module(f"configs.heads.{name}").get_config()
    assert field not in draft_head_run.untrained(c).drafter.arguments
    c.objective[field] = value
    c.objective.part = 7
    assert draft_head_run.agreed(c) == {field: value}
    found = draft_head_run.untrained(c).drafter
    known = inspect.signature(found.module.drafter).parameters
    assert dict(found.arguments)[field] == value
    assert field in known and "part" not in known


@pytest.mark.long
def test_a_middle_layer_is_measured_where_it_is(corpus, tmp_path):
    """Hidden Transfer from another layer; planted: measured at the default one."""
    c = recipe("hidden_transfer", corpus)
    c.objective.layer = 3
    own = draft_head_run.Training(c, tmp_path, small_target(4))
    found = own.hits(own.params, 0.0)
    with own.config.unlocked():
        own.config.objective = {}
    own._measures.clear()
    with pytest.raises(KeyError):
        own.hits(own.params, 0.0)
    assert np.shape(found) == (2, 4)


def test_variants_are_recipes_but_for_their_fields():
    """Same data, schedule and tree; weights of their own, the fields that are named."""
    c = importlib.import_module("configs.heads.eagle_gap").get_config()
    found = {name: recipe.to_dict() for _, name, recipe in draft_heads.plan(c)}
    assert list(found) == list(c.recipes)
    usual = importlib.import_module("configs.heads.compare").get_config()
    plain = {name: recipe.to_dict() for _, name, recipe in draft_heads.plan(usual)}
    for name, fields in c.variants.to_dict().items():
        own, base = found[name], dict(plain[fields.pop("recipe")])
        assert own["name"] == own["weights"] == name
        base.update(name=name, weights=name)
        assert any(own[part] != base[part] for part in fields)
        for part, changed in fields.items():
            assert own[part] == {**base[part], **changed}
            base[part] = own[part]
        assert own == base


def test_heads_of_another_target_are_refused(small, tmp_path):
    params = {"a": {"b": jnp.ones((2, 3))}, "kept": jnp.arange(3)}
    print_ = native.fingerprint(small.params)
    native.save(tmp_path, params, {"target": "tiny", "fingerprint": print_})
    back = native.load(tmp_path, small)
    assert jax.tree.structure(back) == jax.tree.structure(params)
    assert back["kept"].dtype == jnp.int32
    other = types.SimpleNamespace(params=jax.tree.map(lambda x: x + 1, small.params))
    with pytest.raises(CheckpointError, match="train heads for it"):
        native.load(tmp_path, other)
    with pytest.raises(CheckpointError, match=r"holds no heads\.safetensors"):
        native.load(tmp_path / "none", small)
    with pytest.raises(CheckpointError, match="names no method"):
        native.method(tmp_path)


def test_bad_configs(small, corpus, tmp_path):
    c = recipe("medusa", corpus)
    c.head = "medsa"
    with pytest.raises(ConfigError, match=r"config\.head='medsa'"):
        draft_head_run.Training(c, tmp_path, small)
    with pytest.raises(ConfigError, match="steps=0"):
        eagle3.objective(small.model, steps=0)
    with pytest.raises(ConfigError, match="dropout=1"):
        hydra.objective(small.model, dropout=1.0)
    with pytest.raises(ConfigError, match="one of them must be positive"):
        hydra.objective(small.model, label=0.0, soft=0.0)


def test_confidences_are_scaled_and_kept(small, corpus, tmp_path):
    """A temperature a draft, in the export too; heads that rate nothing have none."""
    c = recipe("dspark", corpus)
    c.init.update(block=3, layers=1, rank=8)
    c.objective.anchors, c.evaluate.depth = 4, 2
    training = draft_head_run.Training(c, tmp_path, small)
    found = training.confidence(training.params)
    assert [len(x) for x in found.values()] == [3, 3, 3]
    # The untrained head is sure by a half; sure of all, its errors are 1 - acceptance.
    certain = {**training.params, "confidence_bias": jnp.float32(30.0)}
    accepted = 1 - np.asarray(training.confidence(certain)["plain"])
    halves = 0.5 ** np.arange(1, 4)
    np.testing.assert_allclose(found["plain"], abs(halves - accepted), atol=1e-5)
    assert (np.diff(accepted) < 0).all()
    c.init.confidence = False
    bare = draft_head_run.Training(c, tmp_path, small)
    assert bare.confidence(bare.params) == {}
    eagle = recipe("eagle", corpus)
    other = draft_head_run.Training(eagle, tmp_path, small)
    assert other.confidence(other.params) == {}
