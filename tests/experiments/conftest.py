"""A small random-weight model with a byte tokenizer, and a config that is done fast."""

import jax
import pytest
from ml_collections import ConfigDict

from experiments.measurement import machine
from experiments.measurement.workbench import Model
from experiments.recipes import defaults
from models import transformer

VOCAB = 257


class Bytes:
    """One token a byte, 1 to 256; 0 is the end of a text."""

    def encode(self, text, add_special=True):
        return [b + 1 for b in text.encode()]

    def decode(self, ids):
        return bytes(i - 1 for i in ids if i).decode("latin-1")

    def stream(self):
        return self

    def push(self, token):
        return self.decode([token])

    def flush(self):
        return ""

    def token_bytes(self, size=0):
        return [b"", *(bytes([i]) for i in range(256))]


def make(layers: int, seed: int, eos: tuple[int, ...] = ()) -> Model:
    ropes = (transformer.rope(8, 1e4),)
    config = transformer.Config(
        VOCAB, 32, layers, 4, 2, 8, 64, 1024, ropes=ropes, tied=False, eos=eos
    )
    model = transformer.transformer(config)
    return Model(model, jax.jit(model.init)(jax.random.key(seed)), Bytes())


@pytest.fixture(scope="session")
def lm():
    return make(2, 0)


@pytest.fixture(scope="session")
def draft():
    return make(1, 1)


@pytest.fixture
def config() -> ConfigDict:
    config = defaults.get_config()
    with config.unlocked():
        config.methods = ("plain", "prompt_lookup")
        config.tasks = ("text",)
        config.temperatures = (0.0,)
        config.prompts, config.prompt_tokens = 2, 40
        config.max_new_tokens, config.repeats = 24, 1
        config.curve = False
    return config


@pytest.fixture(autouse=True)
def quick_bandwidth(monkeypatch):
    """The real one reads gigabytes; it has a test of its own."""
    found = {"gb_s": 10.0, "readers": {"sum": 10.0}, "bytes": 2**28}
    monkeypatch.setattr(machine, "bandwidth", lambda: found)
