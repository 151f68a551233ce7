"""What calls of growing width read of a mixture, and what they win."""

import dataclasses
import types

import jax
import pytest

from experiments import run_folder
from experiments.recipes import settings
from experiments.reporting import report
from experiments.studies import moe_width
from models import transformer
from models.errors import ConfigError
from models.transformer.config import Experts

RULE = Experts(4, 2, 16)


@pytest.fixture
def config():
    config = settings.load("configs/studies/moe_width.py")
    config.tasks, config.prompts, config.batches = ("text",), 2, (2,)
    config.prompt_tokens, config.max_new_tokens = 32, 8
    config.temperatures = (0.0,)
    config.arms = (("chain", 2, {"name": "topologies/chain", "length": 1}),)
    return config


@pytest.fixture(scope="module")
def mixture(lm):
    alike = dataclasses.replace(lm.model.config.layer(0), experts=RULE)
    config = lm.model.config
    kinds = (0,) * config.n_layers
    config = dataclasses.replace(
        config, windows=(), rope_of=(), shapes=(alike,), kinds=kinds
    )
    model = transformer.transformer(config)
    params = jax.jit(model.init)(jax.random.key(0))
    return types.SimpleNamespace(
        model=model, params=params, tokenizer=lm.tokenizer, config=config
    )


def test_the_recipe_s_arms_are_as_wide_as_they_say():
    config = settings.load("configs/studies/moe_width.py")
    assert len(config.arms) == 10
    for shape, width, topology in config.arms:
        drafts = topology["length"] if shape == "chain" else topology["nodes"] - 1
        assert drafts == width - 1


def test_a_run_and_its_report(config, tmp_path, mixture, lm, draft):
    place = run_folder.RunFolder(tmp_path)
    found = moe_width.run(config, place, mixture, draft, lm)
    plain, chain = found["moe_width"]
    assert plain["met_tokens"] == 2 and plain["met_expected"] == 3.0
    assert 2 <= plain["met_experts"] <= 4 and plain["tokens_per_call"] == 1
    assert plain["read"] < chain["read"] and chain["met_tokens"] > 2
    # By hand: all experts of every layer are read at most.
    sizes = sum(x.nbytes for x in jax.tree.leaves(mixture.params))
    assert plain["read"] < moe_width.bytes_of(mixture, 4.0) <= sizes
    report.write(place, settings.plain(config), found)
    text = (tmp_path / "report.md").read_text()
    assert "| chain, 2 |" in text and "mixture (in calls of one)" in text
    assert (tmp_path / "figures" / "moe_width_b2.png").exists()


def test_a_dense_model_is_refused(config, tmp_path, lm, draft):
    with pytest.raises(ConfigError, match="no layer of experts"):
        moe_width.run(config, run_folder.RunFolder(tmp_path), lm, draft, lm)
