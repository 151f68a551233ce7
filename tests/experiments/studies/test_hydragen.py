"""The study of shared prefixes: equal outputs, and bytes of one copy."""

import numpy as np
import pytest

from configs.studies import hydragen as recipe
from experiments.run_folder import RunFolder
from experiments.studies import hydragen as study
from models.errors import ConfigError
from models.synthetic import recall


def config(**fields):
    c = recipe.get_config()
    for name, value in fields.items():
        c[name] = value
    return c


def test_both_forms_are_one_attention():
    """And its bytes are one copy's; planted: another prefix."""
    c = config(suffix=16, dim=8, heads=4)
    copied, shared, whole, few = study.forms(c, 32, 3)
    np.testing.assert_allclose(copied(), shared(), atol=1e-6)
    slot = 2 * 2 * 8 * 4  # keys and values, KV heads, their dimension, bytes
    assert (whole, few) == (3 * (32 + 16) * slot, (32 + 3 * 16) * slot)
    other = study.forms(config(suffix=16, dim=8, heads=4, seed=1), 32, 3)[1]
    assert np.abs(np.asarray(copied()) - np.asarray(other())).max() > 0.01


def test_what_cannot_run_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="use at least 1"):
        study.run(config(rows=(0,)), RunFolder(tmp_path), recall.load())
