"""`language_model_run`: a small config from texts to a measured, loadable export."""

import pathlib

import jax
import numpy as np
import pytest

import models
from configs.language_models import (
    tiny,
    tiny_draft,
    tiny_long,
    tiny_moe,
    tiny_text,
    tiny_text_draft,
)
from models.errors import ConfigError
from tests.training import small_trainings
from training.objectives.language_models import next_token
from training.runs import language_model_run

WORDS = "alpha beta gamma delta epsilon zeta eta theta iota kappa".split()


def write_texts(folder: pathlib.Path) -> None:
    rng = np.random.default_rng(0)
    for split, count in (("train", 6), ("validation", 2)):
        (folder / split).mkdir(parents=True)
        for i in range(count):
            lines = [" ".join(rng.choice(WORDS, 8)) for _ in range(60)]
            (folder / split / f"{i}.txt").write_text("\n".join(lines))


def small(folder: pathlib.Path, module=tiny):
    config = module.get_config()
    config.model.update(
        d_model=16, n_layers=1, n_heads=2, n_kv_heads=1, head_dim=8, d_ff=16
    )
    config.data.update(source=str(folder), vocab_size=288, parts=())
    config.data.stages = ((4, 2, 32), (2, 1, 64))
    config.train.update(warmup=1, decay=2, save_every=3, rows_at_once=1)
    config.evaluate.update(window=64, context=16)
    return config


def test_run(tmp_path: pathlib.Path) -> None:
    write_texts(tmp_path / "texts")
    config = small(tmp_path / "texts")
    figures = language_model_run.run(config, tmp_path / "run")
    assert figures["steps"] == 6 and figures["seen_tokens"] == 4 * 64 + 2 * 64
    assert 0 < figures["bits"] < 8 and figures["cases"] == 64
    lm = models.load(tmp_path / "run" / "export")
    text = "alpha  beta\n\té"
    assert lm.tokenizer.decode(lm.tokenizer.encode(text)) == text
    exact = jax.tree.map(
        lambda x: np.array_equal(x, x.astype("bfloat16").astype("float32")), lm.params
    )
    assert all(jax.tree.leaves(exact))
    card = (tmp_path / "run" / "export" / "README.md").read_text()
    assert f"**{figures['bits']:.4f}**" in card and "50%" in card
    assert "{" not in card.replace("{'", "")
    curve = (tmp_path / "run" / "metrics.jsonl").read_text()
    again = language_model_run.run(config, tmp_path / "run")
    assert again["bits"] == figures["bits"]
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == curve


def test_the_tokenizer_must_fit(tmp_path: pathlib.Path) -> None:
    write_texts(tmp_path / "texts")
    config = small(tmp_path / "texts")
    language_model_run.read_data(config, tmp_path / "run")
    config.data.vocab_size = 300
    with pytest.raises(ConfigError, match="288 tokens"):
        language_model_run.read_data(config, tmp_path / "run")


def test_parts_of_a_folder(tmp_path: pathlib.Path) -> None:
    """`tiny_text`: one folder, its own split, a card that says what it is made of."""
    write_texts(tmp_path / "texts")
    config = small(tmp_path / "texts", tiny_text)
    config.data.parts = ({"files": "*/*.txt", "between": "(?<=kappa)\n"},)
    config.data.held = 0.2
    config.data.stages = ((2, 2, 32),)
    tokenizer, train, held = language_model_run.read_data(config, tmp_path / "run")
    assert len(train) + len(held) == len({*train, *held}) > 20 and held
    batches = language_model_run.stream(config, tokenizer, train, tmp_path / "run")
    again = language_model_run.stream(config, tokenizer, train, tmp_path / "run")
    assert batches.fingerprint == again.fingerprint
    assert (batches.batch(1)["tokens"] == again.batch(1)["tokens"]).all()


def test_training_begins_with_a_model(tmp_path: pathlib.Path) -> None:
    """`tiny_long`: its first weights. Planted: drawn ones."""
    config = small(tmp_path, tiny_long)
    config.data.vocab_size = 4096
    target = small_trainings.small_target(1)
    config.model.update(
        {
            name: getattr(target.config, name)
            for name in config.model
            if "rope" not in name
        }
    )
    models.save(target, tmp_path / "first")
    config.start = str(tmp_path / "first")
    shape = language_model_run.model_config(config)
    assert shape.ropes[0].frequencies[1] == 160000.0 ** (-2 / shape.head_dim)
    same = lambda a, b: all(jax.tree.leaves(jax.tree.map(np.array_equal, a, b)))
    assert same(language_model_run.first_params(config, shape), target.params)
    config.start = ""
    assert not same(language_model_run.first_params(config, shape), target.params)
    config.start, config.model.d_ff = str(tmp_path / "first"), 48
    with pytest.raises(ConfigError, match="has other params than a model"):
        shape = language_model_run.model_config(config)
        language_model_run.first_params(config, shape)
    config.train.optimizer = "sgd"
    with pytest.raises(ConfigError, match="'sgd': use 'muon' or 'adamw'"):
        language_model_run.optimizer(config, 8)


def test_windows_with_facts(tmp_path: pathlib.Path) -> None:
    """`tiny_long`'s batches, of its own tokenizer and sizes."""
    write_texts(tmp_path / "texts")
    config = tiny_long.get_config()
    config.data.update(source=str(tmp_path / "texts"), stages=((2, 2, 1024),))
    tokenizer, train, _ = language_model_run.read_data(config, tmp_path / "run")
    stream = language_model_run.stream(config, tokenizer, train, tmp_path / "run")
    assert stream.mixture is not None and stream.mixture.facts.count == 12
    assert stream.batch(1)["loss_mask"].shape == (2, 1025)


@pytest.mark.parametrize(
    "module", [tiny, tiny_draft, tiny_long, tiny_text, tiny_text_draft]
)
def test_shipped_shapes(module) -> None:
    """What issue and README promise of the shipped models."""
    config = module.get_config()
    shape = language_model_run.model_config(config)
    assert shape.vocab_size % 128 == 0 and shape.max_positions >= 4096
    assert config.data.repeat_share >= 0.1
    if module in (tiny, tiny_long, tiny_text):
        heads = (shape.n_layers, shape.n_heads, shape.n_kv_heads)
        assert heads == (8, 8, 2)


def test_a_mixture_of_experts(tmp_path: pathlib.Path) -> None:
    """Saved as Mixtral; its balance is a metric. Planted: none where it weighs 0."""
    write_texts(tmp_path / "texts")
    config = small(tmp_path / "texts", tiny_moe)
    config.data.tokenizer = ""
    config.model.update(experts=4, active=2)
    figures = language_model_run.run(config, tmp_path / "run")
    assert 0 < figures["bits"] < 8
    lm = models.load(tmp_path / "run" / "export")
    assert lm.family == "mixtral"
    rule = lm.config.layer(0).experts
    assert (rule.count, rule.active, rule.width) == (4, 2, 16)
    curve = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert '"uneven"' in curve
    objective = next_token.objective(lm.config)
    assert (
        objective.loss(lm.params, {"tokens": np.zeros((1, 4), np.int32)}, None)[1] == {}
    )
