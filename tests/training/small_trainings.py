"""A small target, texts and recipes that train in seconds."""

import importlib

import jax
import pytest

import models
from models import transformer


@pytest.fixture(scope="module")
def small():
    """A small target with `tiny`'s tokenizer."""
    return small_target(1)


def small_target(layers: int) -> models.Loaded:
    tokenizer = models.load("tiny").tokenizer
    config = transformer.Config(
        vocab_size=4096,
        d_model=16,
        n_layers=layers,
        n_heads=2,
        n_kv_heads=1,
        head_dim=8,
        d_ff=32,
        max_positions=512,
        ropes=(transformer.rope(8, 10000.0),),
        eos=(0,),
    )
    model = transformer.transformer(config)
    return models.Loaded(model, jax.jit(model.init)(jax.random.key(1)), tokenizer)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A folder with a split each."""
    folder = tmp_path_factory.mktemp("corpus")
    for split in ("train", "validation"):
        (folder / split).mkdir()
        for i in range(3):
            text = "".join(f"def f{j}(x):\n    return x + {i}\n" for j in range(60))
            (folder / split / f"{i}.py").write_text(text)
    return str(folder)


def recipe(name: str, corpus: str):
    """A recipe of configs/heads that takes seconds."""
    c = importlib.import_module(f"configs.heads.{name}").get_config()
    c.data.update(source=corpus, tokens=256, batch=2, window=16)
    c.train.update(evaluate_every=4, save_every=4, warmup=1)
    c.evaluate.update(tokens=64, window=32, depth=2, prompts=2, prompt_tokens=8)
    c.evaluate.update(new_tokens=6, nodes=4, ranks=4)
    return c
