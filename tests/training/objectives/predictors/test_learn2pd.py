"""Learn2PD's cases, from a model's own decodes, and the filter's fit."""

import dataclasses

import jax
import numpy as np
import pytest

import decoding
import models
from models import transformer
from models.errors import ConfigError, DataError
from models.predictors import unmask_filter
from tests.training.objectives.language_models.test_masked_diffusion import SHIFTED
from training.objectives.predictors import learn2pd

PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8], [9]]
NEW, BLOCK = 12, 8


@pytest.fixture(scope="module")
def lm():
    shape = dataclasses.replace(SHIFTED, eos=(0,))
    model = transformer.transformer(shape)
    drawn = model.init(jax.random.key(2))
    return models.Loaded(model, jax.tree.map(lambda x: 2 * x, drawn))


@pytest.fixture(scope="module")
def found(lm):
    return learn2pd.cases(lm, PROMPTS, NEW, BLOCK, batch=3)


def test_cases(found):
    """The oracle needs at most a call a token. Known positions have confidence 1."""
    assert found.conf.shape == (found.calls, BLOCK) and found.calls < found.tokens
    assert not (found.final & ~found.open).any()
    assert (found.conf[found.open] < 1).all() and (found.conf <= 1).all()
    assert 0 < found.final[found.open].mean() < 1


def test_the_replay_sees_what_the_decoder_saw(lm, found):
    """A first forward's best guess is in the reference, which committed it.

    Planted: references of other prompts.
    """
    texts = decoding.generate(
        lm, PROMPTS, learn2pd.REFERENCE, max_new_tokens=NEW
    ).tokens

    def firsts(texts):
        """Whether the best guess of the first forward is final, by row."""
        data = learn2pd.replayed(lm, PROMPTS, texts, NEW, BLOCK)
        sure = np.where(data.open, data.conf, -1)[: len(PROMPTS)].argmax(1)
        return data.final[np.arange(len(PROMPTS)), sure]

    assert firsts(texts).all()
    assert not firsts([texts[(i + 1) % 3] for i in range(3)]).all()


def test_fit():
    """Final is what is above one half. Planted: labels without information."""
    rng = np.random.default_rng(0)
    conf = rng.random((400, BLOCK)).astype(np.float32)
    every = np.ones(conf.shape, bool)
    data = learn2pd.Cases(conf, conf > 0.5, every, 400, 400)
    first = unmask_filter.init(jax.random.key(0), BLOCK, 16)
    params, losses = learn2pd.fit(first, data, 1e-2, 600)
    assert losses[-1] < 0.3 < losses[0]
    judged = learn2pd.judged(params, data, 0.9)
    assert judged["recall"] > 0.6 and judged["wrong"] < 0.01
    shuffled = data._replace(final=rng.permuted(data.final, axis=0))
    assert learn2pd.fit(first, shuffled, 1e-2, 600)[1][-1] > 0.5


def test_what_cannot_be_trained_on(lm):
    causal = dataclasses.replace(lm.config, visibility=("block_causal",))
    other = dataclasses.replace(lm, model=lm.model._replace(config=causal))
    with pytest.raises(ConfigError, match=r"trained for \('block_causal',\)"):
        learn2pd.cases(other, PROMPTS)
    with pytest.raises(DataError, match="0 prompts"):
        learn2pd.cases(lm, [])
    every = np.ones((2, BLOCK), bool)
    data = learn2pd.Cases(np.ones((2, BLOCK), np.float32), every, every, 2, 2)
    with pytest.raises(DataError, match="100 % of 16 guesses are final"):
        learn2pd.fit({}, data)
