"""Recipes of small models for tasks: their sizes, and two real steps of each."""

import gzip
import json
import pathlib
import shutil

import jax
import numpy as np
import pytest

import models
from configs.language_models import tiny_classes, tiny_countdown, tiny_programs
from models import storage, transformer
from models.errors import DataError
from training.data import generated_problems
from training.loop import metrics_writer, throughput
from training.runs import language_model_run, scaffold

GENERATED = {tiny_countdown: "countdown", tiny_programs: "programs"}
MODULES = (*GENERATED, tiny_classes)


@pytest.fixture(autouse=True)
def quick_rate(monkeypatch):
    """Time a small product: no test reads the operations a second."""
    monkeypatch.setattr(throughput, "SIDE", 64)


@pytest.mark.parametrize("module", MODULES)
def test_size(module):
    """Under 1.5 million params, and planted: `tiny`'s layers would be more."""
    config = module.get_config()
    init = transformer.transformer(language_model_run.model_config(config)).init
    params = jax.eval_shape(init, jax.random.key(0))
    assert scaffold.num_params(params) < 1_500_000
    config.model.d_model = 256
    init = transformer.transformer(language_model_run.model_config(config)).init
    params = jax.eval_shape(init, jax.random.key(0))
    assert scaffold.num_params(params) > 1_500_000


def write_classes(folder: pathlib.Path) -> None:
    """A wrapped novel, one of a line a paragraph, and articles."""
    rng = np.random.default_rng(0)
    words = "alpha beta gamma delta epsilon zeta eta theta".split()
    line = lambda n: " ".join(rng.choice(words, n))
    wrapped = "\n\n".join("\n".join(line(10) for _ in range(3)) for _ in range(40))
    long = "\n".join(line(30) for _ in range(40))
    (folder / "english_novels").mkdir(parents=True)
    rows = "".join(json.dumps({"text": text}) + "\n" for text in (wrapped, long))
    packed = gzip.compress(rows.encode())
    (folder / "english_novels" / "a.jsonl.gz").write_bytes(packed)
    (folder / "wikitext2").mkdir()
    articles = " = Title = \n \n" + "".join(f" {line(30)} . \n" for _ in range(80))
    packed = gzip.compress(articles.encode())
    (folder / "wikitext2" / "wiki.train.txt.gz").write_bytes(packed)


def small(module, folder: pathlib.Path):
    """Return the recipe with small widths and two steps, on data in `folder`."""
    c = module.get_config()
    c.model.update(d_model=16, n_layers=1, n_heads=2, n_kv_heads=1, head_dim=8, d_ff=16)
    c.data.update(source=str(folder), vocab_size=288, tokenizer="")
    c.data.stages = ((2, 4, 64),)
    c.train.update(warmup=1, decay=1, save_every=1, rows_at_once=2)
    if module is tiny_classes:
        c.data.held = 0.1
        write_classes(folder)
    else:
        name = GENERATED[module]
        generated_problems.write(name, storage.path(folder), (100, 10))
    return c


@pytest.mark.parametrize("module", MODULES)
def test_two_steps(module, tmp_path):
    config = small(module, tmp_path / "data")
    figures = language_model_run.run(config, tmp_path / "run")
    losses = [row["loss"] for row in metrics_writer.rows(tmp_path / "run", "metrics")]
    assert len(losses) == figures["steps"] == 2 and np.isfinite(losses).all()
    lm = models.load(tmp_path / "run" / "export")
    first = transformer.transformer(lm.config).init(jax.random.key(config.seed))
    same = jax.tree.map(lambda a, b: bool((a == b).all()), first, lm.params)
    assert not any(jax.tree.leaves(same))
    card = (tmp_path / "run" / "export" / "README.md").read_text()
    assert "Copying" not in card and "repeat passages" not in card
    assert "Muon" in card and "{" not in card


def test_codes_of_the_classes(tmp_path):
    """One token before each paragraph, the right one; planted: codes swapped."""
    config = small(tiny_classes, tmp_path)
    tokenizer, train, held = language_model_run.read_data(config, tmp_path / "run")
    assert len(train) + len(held) == 40 + 40 + 80
    wikipedia, novels = (
        tokenizer.encode(code).ids
        for code in (tiny_classes.WIKIPEDIA, tiny_classes.NOVELS)
    )
    assert len(wikipedia) == len(novels) == 1 and wikipedia != novels
    for text in (*train, *held):
        ids = tokenizer.encode(text).ids
        assert (ids[0] == wikipedia[0]) == text.endswith(" . ")
        assert (ids[0] == novels[0]) == (not text.endswith(" . "))
        assert not {*wikipedia, *novels} & {*ids[1:]}


def test_a_resumed_run_is_the_same(tmp_path):
    """Its last checkpoint lost, it is made again; planted: other problems."""
    config = small(tiny_countdown, tmp_path / "data")
    whole = language_model_run.run(config, tmp_path / "run")
    curve = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "2")
    again = language_model_run.run(config, tmp_path / "run")
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == curve
    assert again["bits"] == whole["bits"]
    others = storage.path(tmp_path / "data")
    generated_problems.write("countdown", others, (100, 10), seed=1)
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "2")
    with pytest.raises(DataError, match="use a new workdir"):
        language_model_run.run(config, tmp_path / "run")
