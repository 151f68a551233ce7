"""Reading in blocks gives the figures of decoding one token a call, and its bytes."""

import numpy as np
import pytest

import models
from decoding import Method, Spec
from decoding.conformance import peaked
from experiments.benchmarks import forced_reading, long_nats
from experiments.benchmarks.long_context import Case
from models.errors import ConfigError

RNG = np.random.default_rng(0)
NEW = 24
ONE = models.Loaded(peaked.model().model, peaked.model().params)


def case(length: int) -> Case:
    tokens = tuple(map(int, RNG.integers(0, 7, length + NEW)))
    return Case(tokens[:length], length, tokens[length:])


CASES = [case(length) for length in (39, 20, 33)]
SPECS = {
    "dense": Spec("caches/dense"),
    "gear": Spec("caches/gear", group=4, block=32, window=8, rank=1),
    "h2o": Spec("caches/h2o", budget=12, every=8, prompt_every=16),
    "chelsea": Spec("caches/chelsea", budget=12, chunk=4, every=8, prompt_every=16),
    "speckv": Spec("caches/speckv", budget=12, window=4, kernel=3, lookahead=6),
}


def one_by_one(spec):
    fields: dict = {"drafts": {"draft": ONE}} if "speckv" in spec.name else {}
    fields |= {"method": Method(policy=spec), "width": "paper", "prefill_chunk": 8}
    return long_nats.forced_output(ONE, CASES, **fields)


@pytest.mark.long
@pytest.mark.kv
@pytest.mark.parametrize("name", SPECS)
def test_it_is_decoding_one_by_one(name, monkeypatch):
    """Nats, likeliest tokens' places, and bytes. Planted: `room` is ignored."""
    spec = SPECS[name]
    found = forced_reading.read(ONE, CASES, spec, block=8, draft=ONE)
    out = one_by_one(spec)
    nats = -np.asarray(out.logprobs)
    assert np.abs(np.asarray(found.nats) - nats).max() < 2e-4
    longest = max(len(one.prompt) for one in CASES)
    size = forced_reading.kv_bytes(ONE, spec, longest, NEW, np.float32, draft=ONE)
    assert size == out.stats.kv_bytes
    if out.stats.keys_read is not None:
        assert np.mean(found.slots) == pytest.approx(out.stats.keys_read, abs=1e-3)
    likely = np.asarray(found.nats) < np.log(2)
    best = np.asarray(found.best) == [one.expected for one in CASES]
    assert best[likely].all() and 0 < best.mean() < 1
    if name == "h2o":
        build = Spec.build
        unbounded = lambda spec, parts: build(spec, parts)._replace(room=None)
        monkeypatch.setattr(Spec, "build", unbounded)
        wrong = forced_reading.read(ONE, CASES, spec, block=8)
        assert np.abs(np.asarray(wrong.nats) - nats).max() > 0.01


def test_what_depends_on_blocks_is_refused(monkeypatch):
    build = Spec.build
    impure = lambda spec, parts: build(spec, parts)._replace(path_pure=False)
    monkeypatch.setattr(Spec, "build", impure)
    with pytest.raises(ConfigError, match="caches/dense is not path-pure"):
        forced_reading.read(ONE, CASES, SPECS["dense"])
