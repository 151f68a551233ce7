"""Learn2PD from a config: cases, filter, decoding, the report's tables."""

import dataclasses
import json

import jax
import pytest

import models
from configs.predictors import learn2pd
from experiments.trainings import unmask_filter
from models import transformer
from models.heads.formats import native
from tests.training.small_trainings import corpus, small_target
from training.runs import unmask_filter_run

__all__ = ["corpus"]  # a fixture


def diffusion_target():
    """A small target of random weights with a mask token."""
    plain = small_target(1)
    shape = dataclasses.replace(
        plain.config,
        vocab_size=4097,
        mask_token=4096,
        visibility=("bidirectional",),
        alignment="shifted",
    )
    model = transformer.transformer(shape)
    params = jax.tree.map(lambda x: 2 * x, model.init(jax.random.key(1)))
    return models.Loaded(model, params, plain.tokenizer)


def small(corpus):
    config = learn2pd.get_config()
    config.data.update(source=corpus, prompts=4, held=2, prompt_tokens=8)
    config.data.update(new_tokens=10, batch=4)
    config.steps, config.block, config.hidden = 60, 32, 8
    config.evaluate.update(prompts=2, new_tokens=10)
    config.evaluate.update(thresholds=(0.6,), confidences=(0.9,))
    return config


@pytest.mark.long
def test_run(corpus, tmp_path):
    """The same command gives the same figures, from the stored cases."""
    config, lm = small(corpus), diffusion_target()
    figures = unmask_filter_run.run(config, tmp_path, lm)
    rows = figures["decoding"]
    assert list(rows) == ["one a step", "fast_dllm 0.9", "learn2pd 0.6"]
    assert rows["one a step"] == {"tokens_per_call": 1.0, "same": 1.0, "shared": 1.0}
    assert figures["loss"][1] < figures["loss"][0] and figures["oracle"] > 1
    assert json.loads((tmp_path / "figures.json").read_text()) == figures
    before = (tmp_path / "cases-train.npz").read_bytes()
    assert unmask_filter_run.run(config, tmp_path, lm) == figures
    assert (tmp_path / "cases-train.npz").read_bytes() == before
    filters = native.load(str(tmp_path / "export"), lm)
    assert set(filters) == {"hidden", "out"}
    filter_table, texts = unmask_filter.tables(figures)
    assert [line[0] for line in texts["lines"]] == list(rows)
    assert [line[0] for line in filter_table["lines"]] == ["0.6"]
    # Planted: other prompts, whose oracle needs other calls.
    config.seed = 1
    other = unmask_filter_run.run(config, tmp_path / "other", lm)
    assert other["held_loss"] != figures["held_loss"]


@pytest.mark.long
def test_trials(corpus, tmp_path):
    """What `experiments.preflight` runs: a fit of two steps, and a decoding with it."""
    config, lm = small(corpus), diffusion_target()
    (trial,) = unmask_filter.trials(config, tmp_path, lm, None)
    trained = trial.train()
    changed = jax.tree.map(lambda a, b: bool((a != b).any()), trial.params, trained)
    assert any(jax.tree.leaves(changed))
    assert "learn2pd 0.6" in trial.decode(trained)
