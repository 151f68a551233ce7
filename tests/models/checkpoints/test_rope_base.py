"""`models.load(rope_theta=)`: another base, the same weights."""

import dataclasses
import pathlib

import numpy as np
import pytest

import models
from models import transformer
from models.checkpoints import rope
from models.errors import ConfigError
from tests.models import small

GOLDEN = pathlib.Path(__file__).parents[2] / "golden" / "models"


def test_the_base_of_the_checkpoint_changes_nothing():
    lm = models.load("tiny")
    assert models.load("tiny", rope_theta=10000).config == lm.config
    assert models.load("tiny", rope_theta=40000).config != lm.config


def test_frequencies():
    """`theta^(-2i/d)`. Planted: of the whole width, as where d/2 is taken for d."""
    config = models.load("tiny", rope_theta=40000.0).config
    pairs = np.arange(config.head_dim // 2)
    given = config.ropes[0].frequencies
    np.testing.assert_allclose(given, 40000.0 ** (-2 * pairs / config.head_dim))
    fault = rope.with_base(dataclasses.replace(config, head_dim=64), 40000.0)
    assert fault.ropes[0].frequencies[:16] != given
    rest = dataclasses.replace(config, ropes=models.load("tiny").config.ropes)
    assert rest == models.load("tiny").config


def test_a_base_is_kept_by_save(tmp_path):
    lm = models.load("tiny", rope_theta=40000.0)
    models.save(lm, tmp_path)
    assert models.load(tmp_path).config == lm.config


def test_a_rotary_share_of_the_head_stays():
    raw = {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5}
    half = rope.build(raw, 8, 64, "here")
    config = rope.with_base(dataclasses.replace(small.CONFIG, ropes=(half,)), 400.0)
    assert config.ropes[0].frequencies == transformer.rope_frequencies(4, 400.0)


@pytest.mark.parametrize("theta", [0, -1.0, True, "40000"])
def test_no_base(theta):
    with pytest.raises(ConfigError, match=r"rope_theta=.*use a number above 0"):
        models.load("tiny", rope_theta=theta)


@pytest.mark.parametrize(
    ("name", "has"),
    [("gpt2", "learned positions"), ("gemma3", "ropes of the types")],
)
def test_models_without_one_plain_rope(name, has):
    with pytest.raises(ConfigError, match=f"rope_theta=40000: the model has {has}"):
        models.load(GOLDEN / name, rope_theta=40000)
    models.load(GOLDEN / name)
