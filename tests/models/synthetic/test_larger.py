"""A larger model's cost, a model's own texts."""

import jax.numpy as jnp
import numpy as np
import pytest

from models import errors
from models.synthetic import larger
from tests.models import blocks, small

MODEL, PARAMS = small.LM, small.PARAMS
TOKENS = np.random.default_rng(0).integers(0, MODEL.config.vocab_size, (2, 5))
MOST = 400_000


def logits(model, params):
    return blocks.whole(model, params, TOKENS.astype(np.int32), 16)


def test_it_costs_more_and_writes_the_same():
    """Bit for bit. Planted: the added layers count."""
    model = larger.language_model(MODEL, MOST)
    params = larger.params(MODEL, PARAMS, MOST)
    assert 0.9 * MOST < larger.count(params) <= MOST
    assert model.config.vocab_size == MODEL.config.vocab_size
    assert repr(model.config) != repr(MODEL.config)  # times are kept by it
    np.testing.assert_array_equal(logits(model, params), logits(MODEL, PARAMS))
    params["added"]["zero"] = jnp.float32(1)
    assert (logits(model, params) != logits(MODEL, PARAMS)).any()


def test_a_model_that_is_as_large():
    with pytest.raises(errors.ConfigError, match="larger=1000: the model has"):
        larger.params(MODEL, PARAMS, 1000)
