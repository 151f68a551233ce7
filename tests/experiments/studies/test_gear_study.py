"""The study of caches that change values: equal bytes, paired differences, arms."""

import types

import jax
import numpy as np
import pytest

import models
from configs.studies import gear as recipe
from decoding import Spec
from experiments.benchmarks import forced_reading
from experiments.studies import gear as study
from models.errors import ConfigError

TINY = models.load("tiny")


def test_claims_name_arms():
    """Planted: an arm that is not there."""
    c = recipe.get_config()
    study.check(c)
    c.claims = (("GEAR, 2 bits", "KIVI, 3 bits"),)
    with pytest.raises(ConfigError, match="KIVI, 3 bits"):
        study.check(c)


@pytest.mark.parametrize("bits", [2, 4])
def test_bytes_are_equal(bits):
    """KIVI within 3 % of GEAR, at a window of its own. Planted: GEAR's window."""
    c = recipe.get_config()
    like = f"GEAR, {bits} bits"
    arm = c.arms[f"KIVI, {bits} bits, bytes of {like}"].to_dict()
    _, spec = study.built(c, TINY, [], arm)
    size = lambda spec: forced_reading.kv_bytes(TINY, spec, 384, 128, np.float32)
    due = size(Spec("caches/gear", bits=bits))
    assert abs(size(spec) / due - 1) < 0.03
    same = Spec("caches/kivi", bits=bits, group=32, window=64)
    assert abs(size(same) / due - 1) > 0.03


def test_bytes_that_cannot_be_met():
    """Eight bits take more than two at any window."""
    c = recipe.get_config()
    few = Spec("caches/kivi", bits=2, group=64, window=32)
    with pytest.raises(ConfigError, match="use fewer bits"):
        arguments = {"name": "caches/kivi", "bits": 8, "group": 32}
        study.window_of(c, TINY, arguments, few)


def test_differences_are_paired():
    """Windows differ more than arms do; planted: windows of another order."""
    rng = np.random.default_rng(0)
    hard = rng.uniform(1, 3, 30)
    more = {"nats": hard + 0.05 + rng.normal(0, 0.01, 30)}
    mean, error = study.gap(more, {"nats": hard})
    assert abs(mean - 0.05) < 0.01 and error < 0.005
    assert study.gap(more, {"nats": hard[::-1]})[1] > 0.05


def test_tables_by_hand():
    c = recipe.get_config()
    c.seeds, c.lengths, c.treed = (0, 1), (512,), ("dense",)
    c.claims = (("a", "dense"),)
    row = lambda nats, size: {
        "nats": nats,
        "right": [1.0, 0.5],
        "slots": 9.0,
        "arguments": {},
        "kv_bytes": {"float32": [size], "bfloat16": [size]},
    }
    rows = {"dense": row([1.0, 2.0], 2048) | {"tree": 3.0, "same": 6}}
    rows["a"] = row([1.1, 2.1], 1024)
    arms = {"dense": {"part": ""}, "a": {"part": "codes"}}
    codes, claims, sizes = study.tables(c, arms, rows)
    line = codes["lines"][1]
    assert line[:4] == ["a", "–", "+0.1000 ± 0.0000", "+0.100 +0.100"]
    assert line[4:] == ["0.750 ± 0.250", "9", "1", "50%", "50%", "–"]
    assert codes["lines"][0][-1] == "3.00"
    assert claims["lines"][0][1:3] == ["-0.1000 ± 0.0000", "no"]
    assert sizes["lines"] == [["a", "50.0%", "50.0%"]]


def test_arms_change_the_model():
    """An arm of heads has fewer of them; one of codes another layout."""
    c = types.SimpleNamespace(length=64, last=32)
    own = [("file", tuple(range(64)))]
    lm, spec = study.built(c, TINY, own, {"heads": {"rank": 16}})
    assert lm.model.config.cached(0) == (1, 16) and spec == Spec("caches/dense")
    lm, _ = study.built(c, TINY, own, {"layout": "int8", "window": 64})
    like = jax.eval_shape(lambda: lm.model.init_layer(1, 64))
    assert type(like).__name__ == "QuantizedLayer"
