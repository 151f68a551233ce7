"""Draft models and acceptance heads from a config to figures, in seconds."""

import json

import jax
import numpy as np
import pytest

import models
from configs import direct_alignment, fastdraft, specdec_pp
from models.errors import ConfigError
from models.heads import acceptance as heads
from models.heads import files
from tests.training.test_heads import corpus, small  # noqa: F401
from training import acceptance, drafts


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


def test_a_draft_from_nothing(small, corpus, tmp_path):  # noqa: F811
    """Pre-trained, aligned, measured, exported; a second run repeats nothing."""
    c = recipe(fastdraft, corpus)
    before = jax.tree.map(lambda x: np.asarray(x).tobytes(), small.params)
    found = drafts.run(c, tmp_path, small)
    assert list(found["variants"]) == ["ce", "half_kl"]
    for name, row in found["variants"].items():
        assert row["steps"] == 8 and [r["step"] for r in row["curve"]] == [4, 8]
        assert 0 < row["after"]["alpha_0"] < 1 and row["after"]["tau"] >= 1
        own = models.load(tmp_path / name / "export")
        assert own.config.d_model == 8 and own.config.vocab_size == 4096
    assert found["before"]["nats"] != found["variants"]["ce"]["after"]["nats"]
    rows = [json.loads(x) for x in (tmp_path / "written" / "0-1.jsonl").open()]
    assert len(rows) == 2 and all(row["prompt_tokens"] == 8 for row in rows)
    again = drafts.run(c, tmp_path, small)
    assert again["variants"]["ce"]["after"] == found["variants"]["ce"]["after"]
    after = jax.tree.map(lambda x: np.asarray(x).tobytes(), small.params)
    assert before == after  # planted: an optimiser that holds the target, too


def test_another_tokenizer_is_refused(small, corpus, tmp_path):  # noqa: F811
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
        drafts.Training(c, tmp_path, own)


def test_an_acceptance_head(small, corpus, tmp_path):  # noqa: F811
    """Trained for a pair, calibrated, priced and exported."""
    c = shrink(specdec_pp.get_config(), corpus)
    c.evaluate.update(lengths=(1, 2), thresholds=(0.3, 0.9), most=3, costs=(0.1,))
    draft = models.Loaded(small.model, small.model.init(jax.random.key(9)))
    found = acceptance.run(c, tmp_path, small, draft)
    assert found["steps"] == 8 and 0 < found["accepted"] < 1
    assert set(found["calls"]) == {"fixed 1", "fixed 2", "h 0.3", "h 0.9"}
    one = found["calls"]["fixed 1"]
    assert one["draft"] == one["target"] and one["tokens"] == 12
    assert sum(found["calibration"]["raw"]["counts"]) > 10
    params = files.load(tmp_path / "export", small)
    heads.check(params, small.config.d_model)
    assert files.describe(tmp_path / "export")["blocks"] == 3
