"""Draft models and acceptance heads from a config to figures, in seconds."""

import dataclasses
import functools
import json

import jax
import numpy as np
import pytest
import tokenizers

import models
from configs.draft_models import direct_alignment, fastdraft, s2d
from configs.predictors import judge, specdec_pp, specee
from experiments import stage
from experiments.measurement import machine
from experiments.recipes import settings
from experiments.reporting import report
from experiments.run_folder import RunFolder
from experiments.trainings import acceptance_head, draft_models, exit_predictors
from models.errors import ConfigError
from models.heads.formats import native
from models.predictors import acceptance_predictor, exit_predictor, judge_predictor
from models.text import hf_tokenizer
from tests.training.small_trainings import small_target
from training.runs import acceptance_run, draft_model_run, judge_run


@pytest.fixture
def quick_bandwidth(monkeypatch):
    monkeypatch.setattr(machine, "last_level_cache", lambda: 2**20)  # small arrays


def shrink(c, source):
    c.data.update(source=source, tokens=256, batch=2, window=16)
    c.distill.update(prompts=4, held=2, prompt_tokens=8, new_tokens=6, batch=2)
    c.train.update(save_every=4, warmup=1, rows_at_once=2)
    c.evaluate.update(prompts=2, prompt_tokens=8, new_tokens=6)
    return c


def recipe(module, source):
    c = shrink(module.get_config(), source)
    c.draft.update(start="", d_model=8, n_layers=1, n_heads=1, n_kv_heads=1, d_ff=8)
    c.data.pretraining_tokens = 256
    c.distill.temperatures = (0.0, 1.0)
    c.train.update(evaluate_every=4)
    c.evaluate.update(length=2)
    return c


def test_a_draft_from_nothing(small, corpus, tmp_path):
    """Pre-trained, aligned, measured, exported; a second run repeats nothing.

    Both variants learn from one cache of the target's likeliest tokens.
    """
    c = recipe(fastdraft, corpus)
    c.teacher, c.features.topk = "offline", 8
    before = jax.tree.map(lambda x: np.asarray(x).tobytes(), small.params)
    found = draft_model_run.run(c, tmp_path, small)
    assert list(found["variants"]) == ["ce", "half_kl"]
    for name, row in found["variants"].items():
        assert row["steps"] == 8 and [r["step"] for r in row["curve"]] == [4, 8]
        assert 0 < row["after"]["alpha_0"] < 1 and row["after"]["tau"] >= 1
        own = models.load(tmp_path / name / "export")
        assert own.config.d_model == 8 and own.config.vocab_size == 4096
    assert found["before"]["nats"] != found["variants"]["ce"]["after"]["nats"]
    rows = [json.loads(x) for x in (tmp_path / "written" / "0-1.jsonl").open()]
    assert len(rows) == 2 and all(row["prompt_tokens"] == 8 for row in rows)
    about = json.loads((tmp_path / "features" / "manifest.json").read_text())
    assert about["topk"] == 8 and about["taps"] == []
    again = draft_model_run.run(c, tmp_path, small)
    assert again["variants"]["ce"]["after"] == found["variants"]["ce"]["after"]
    after = jax.tree.map(lambda x: np.asarray(x).tobytes(), small.params)
    assert before == after  # planted: an optimiser that holds the target, too


def test_another_tokenizer_is_refused(small, corpus, tmp_path):
    c = recipe(direct_alignment, corpus)
    assert list(c.variants) == ["tvdpp", "kl", "tv", "ce"] or set(c.variants) == {
        "tvdpp",
        "kl",
        "tv",
        "ce",
    }
    c.draft.start = "tiny-draft"
    own = models.Loaded(
        small.model._replace(
            config=type(small.config)(**{**vars(small.config), "vocab_size": 4224})
        ),
        small.params,
        small.tokenizer,
    )
    with pytest.raises(ConfigError, match="one of 4224"):
        draft_model_run.Training(c, tmp_path, own)


def reordered(lm):
    """The model with a tokenizer as large, of which two tokens are exchanged."""
    data = json.loads(lm.tokenizer.inner.to_str())
    vocabulary = data["model"]["vocab"]
    a, b = sorted(vocabulary, key=vocabulary.get)[300:302]
    vocabulary[a], vocabulary[b] = vocabulary[b], vocabulary[a]
    inner = tokenizers.Tokenizer.from_str(json.dumps(data))
    return dataclasses.replace(
        lm, tokenizer=hf_tokenizer.Tokenizer(inner, lm.tokenizer.eos)
    )


def test_a_draft_of_other_tokens_is_refused(small, corpus, tmp_path, monkeypatch):
    """Though there are as many, and before the target writes or runs."""

    def runs(*_, **__):
        raise AssertionError("the target ran")

    for module in (draft_model_run, judge_run.judge):
        monkeypatch.setattr(module.decoding, "generate", runs)
    monkeypatch.setattr(draft_model_run, "write", runs)
    c = recipe(direct_alignment, corpus)
    c.draft.start = "tiny-draft"
    draft_model_run.Training(c, tmp_path / "same", small)
    other = reordered(small)
    with pytest.raises(ConfigError, match=r"start='tiny-draft' .* 2 tokens do not"):
        draft_model_run.Training(c, tmp_path / "drafts", other)
    c = shrink(specdec_pp.get_config(), corpus)
    with pytest.raises(ConfigError, match=r"draft='tiny-draft' .* 2 tokens do not"):
        acceptance_run.Training(c, tmp_path / "acceptance", small, other)
    c = judge.get_config()
    with pytest.raises(ConfigError, match=r"draft='tiny-draft' .* 2 tokens do not"):
        judge_run.run(c, tmp_path / "judge", small, other)
    by_size = property(lambda own: str(own.vocab_size))
    monkeypatch.setattr(
        hf_tokenizer.Tokenizer, "digest", by_size
    )  # planted: sizes alone
    c = shrink(specdec_pp.get_config(), corpus)
    with pytest.raises(AssertionError, match="the target ran"):
        acceptance_run.Training(c, tmp_path / "acceptance", small, other)


def reported(c, place, found) -> str:
    """The page of a stage's findings, and its reliability diagrams."""
    report.write(place, settings.plain(c), found)
    for plot in found["plots"]:
        assert (place.path / "figures" / f"{plot['name']}.png").exists()
    assert "Calibration of" in (place.path / "report.html").read_text()
    return (place.path / "report.md").read_text()


@pytest.mark.long
def test_an_acceptance_head(small, corpus, tmp_path, quick_bandwidth):
    """Trained for a pair, calibrated, priced and exported."""
    c = shrink(specdec_pp.get_config(), corpus)
    c.evaluate.update(lengths=(1,), thresholds=(0.3, 0.9), most=2, costs=(0.1,))
    c.evaluate.confidences = (0.5,)
    draft = models.Loaded(small.model, small.model.init(jax.random.key(9)))
    made = acceptance_head.run(c, RunFolder(tmp_path), small, draft)
    found = made["trained"]
    assert found["steps"] == 8 and 0 < found["accepted"] < 1
    assert set(found["calls"]) == {"fixed 1", "confidence 0.5", "h 0.3", "h 0.9"}
    one = found["calls"]["fixed 1"]
    assert one["draft"] == one["target"] and one["tokens"] == [6, 6]
    text = reported(c, RunFolder(tmp_path), made)
    assert "a confidence stop" in text and "calibration-as-trained.png" in text
    # Of two texts of 6 new tokens, the share that was drafted.
    assert 6 <= sum(found["calibration"]["raw"]["counts"]) <= 12
    params = native.load(tmp_path / "export", small)
    acceptance_predictor.check(params, small.config.d_model)
    assert native.describe(tmp_path / "export")["blocks"] == 3


def test_a_sorted_draft_and_its_drafter():
    """The recipe trains and decodes with the same exits."""
    c = s2d.get_config()
    assert tuple(c.variants.sorted.exits) == tuple(c.drafter.exits)
    method = draft_model_run.method(c)
    assert method.drafter.name == "drafters/s2d"
    assert method.topology.arguments["length"] == c.evaluate.length


def test_targets_of_one_name_are_refused(tmp_path):
    """Planted: the rows of the second would be those of the first."""
    c = s2d.get_config()
    c.targets = (("a/export", {}), ("b/export", {}))
    with pytest.raises(ConfigError, match="two are the same"):
        draft_models.run(c, RunFolder(tmp_path))


@pytest.mark.long  # minutes: three trainings and their decoding
def test_one_sorted_draft_serves_two_targets(
    request, tmp_path, monkeypatch, quick_bandwidth
):
    """The texts are each target's own; a threshold of its own changes what it costs."""
    first, second = small_target(1), small_target(2)
    models.save(second, tmp_path / "deep")
    c = recipe(s2d, request.getfixturevalue("corpus"))
    c.draft.update(start="", d_model=8, n_layers=2, n_heads=2, n_kv_heads=1, d_ff=16)
    c.variants = {"sorted": {"loss": "kl", "exits": (1,)}}
    c.drafter.update(exits=(1,), threshold=0.0)
    c.targets = ((str(tmp_path / "deep"), {"threshold": 1.0}),)
    c.directions = (("sorted", "before"), ("sorted@deep", "before@deep"))
    c.update(tasks=("text",), temperatures=(0.8,), prompts=2, prompt_tokens=8)
    c.update(max_new_tokens=6, repeats=1)
    seen = []
    sound = draft_models.Bench.compose

    def compose(self, case, lm=None):
        drafter = case.method.drafter
        arguments = dict(drafter.arguments) if drafter else {}
        seen.append((self.lm.config.n_layers, arguments.get("threshold")))
        return sound(self, case, lm)

    monkeypatch.setattr(draft_models.Bench, "compose", compose)
    place = RunFolder(tmp_path / "run")
    found = draft_models.run(c, place, first)
    assert {(1, 0.0), (2, 1.0)} <= set(seen) and (2, 0.0) not in seen  # planted
    rows = {row["method"]: row for row in found["rows"]}
    names = {f"{n}{at}" for n in ("plain", "before", "sorted") for at in ("", "@deep")}
    assert set(rows) == names
    assert all(row["identical_to_plain"] for row in rows.values())
    one, other = (rows[n] for n in ("plain", "plain@deep"))
    texts = [found["samples"][row["key"]] for row in (one, other)]
    assert [s["pieces"] for s in texts[0]] != [s["pieces"] for s in texts[1]]
    report.write(place, settings.plain(c), found)
    text = (place.path / "report.md").read_text()
    for at in ("", "@deep"):  # drafts compared on one target's prompts
        assert f"| sorted{at} ≥ before{at} | 0.8 |" in text
    assert (place.path / "figures" / "mfu.png").exists()


@pytest.mark.long
def test_a_judge(small, corpus, tmp_path, monkeypatch, quick_bandwidth):
    """Labelled, fitted, decoded with beside the divergence rule, and exported.

    What a random target writes finds back to nothing: labels are by lot.
    """
    lot = np.random.default_rng(0)
    by_lot = functools.partial(
        judge_run.judge.cases, same=lambda a, b: lot.random() < 0.5
    )
    monkeypatch.setattr(judge_run.judge, "cases", by_lot)
    sound, labels = judge_run.judge.fit, []

    def fit(given, good, *more):
        labels.append(good)
        return sound(given, good, *more)

    monkeypatch.setattr(judge_run.judge, "fit", fit)
    c = judge.get_config()
    c.data.update(source=corpus, prompts=6, held=4, prompt_tokens=8, new_tokens=12)
    c.data.update(horizon=4, most=3, batch=4)
    c.evaluate.update(prompts=3, new_tokens=8, thresholds=(0.5, 2.0))
    c.evaluate.update(divergences=(-1.0, 0.3), length=2)
    draft = models.Loaded(small.model, small.model.init(jax.random.key(9)))
    made = stage.find("judge").run(c, RunFolder(tmp_path), small, draft)
    found = made["trained"]
    rows = found["decoding"]
    assert rows["exact"]["same"] == rows["judge 2"]["same"] == 1.0
    assert rows["lot 2"]["same"] == 1.0 and "lot 0.5" in rows
    # Planted: the control learns what the judge learns.
    assert labels[0] != labels[1] and sorted(labels[0]) == sorted(labels[1])
    assert rows["kl_threshold -1"]["shared"] == 1.0
    assert rows["judge 2"]["nats"] == pytest.approx(rows["plain"]["nats"])
    assert sum(found["cases"]) > 10 and 0 <= found["accuracy"] <= 1
    judge_predictor.check(native.load(tmp_path / "export", small))
    text = reported(c, RunFolder(tmp_path), made)
    assert "| judge 0.5 |" in text and "judge against kl_threshold" in text
    assert "judge against lot" in text


@pytest.mark.long
def test_exit_predictors(corpus, tmp_path, quick_bandwidth):
    """Trained behind an EAGLE layer that is trained first; decoded and exported."""
    target = small_target(3)
    c = specee.get_config()
    c.static = 1
    c.objective.update(candidates=target.config.vocab_size, width=8, part=4)
    for part in (c.data, c.eagle.data):
        part.update(tokens=256, batch=2, window=16)
    c.data.source = corpus
    c.eagle.train.update(evaluate_every=8, save_every=4, warmup=1)
    c.eagle.evaluate.update(tokens=64, window=16, depth=2, ranks=4, nodes=4)
    c.eagle.evaluate.update(prompts=2, prompt_tokens=8, new_tokens=4)
    c.train.update(save_every=4, warmup=1)
    c.evaluate.update(tokens=64, window=16, prompts=2, prompt_tokens=8, new_tokens=6)
    c.evaluate.update(thresholds=(0.0, 1.0), confidences=(1.0,))
    made = exit_predictors.run(c, RunFolder(tmp_path), target)
    found = made["trained"]
    rows, depth = found["decoding"], target.config.n_layers
    assert rows["two levels, 1"]["layers"] == depth == rows["plain"]["layers"]
    assert rows["two levels, 1"]["same"] == 1.0
    # Every token is a candidate, so that whatever a layer says is among them.
    assert rows["every layer, 0"]["layers"] == 1 < depth
    assert rows["layer 2"]["layers"] == 2 and rows["layer 1"]["layers"] == 1
    assert rows["confidence 1"]["layers"] == depth
    assert rows["confidence 1"]["same"] == 1.0
    assert sum(found["held_out"]["stops"]) == pytest.approx(1.0)
    exit_predictor.check(native.load(tmp_path / "export", target), depth)
    text = reported(c, RunFolder(tmp_path), made)
    assert "every layer, 0" in text and "two levels against layer" in text
