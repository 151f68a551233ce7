"""From a config to a trained, measured and exported language model."""

import pathlib
from typing import Any

import jax
import numpy as np
import tokenizers
from absl import logging

from models import transformer
from models.errors import ConfigError
from training import data, fit, optimizers, repeats, tokenizer as bpe
from training.objectives import next_token


def model_config(config: Any) -> transformer.Config:
    """The transformer of a config's `model` and `data.vocab_size`."""
    m = config.model
    return transformer.Config(
        vocab_size=config.data.vocab_size,
        d_model=m.d_model,
        n_layers=m.n_layers,
        n_heads=m.n_heads,
        n_kv_heads=m.n_kv_heads,
        head_dim=m.head_dim,
        d_ff=m.d_ff,
        max_positions=m.max_positions,
        ropes=(
            transformer.Rope(transformer.rope_frequencies(m.head_dim, m.rope_theta)),
        ),
        eos=(0,),
    )


def read_data(
    config: Any, workdir: pathlib.Path
) -> tuple[tokenizers.Tokenizer, list[str], list[str]]:
    """The tokenizer (trained on the training split, or given) and both splits."""
    directory = config.data.directory or workdir / "data"
    splits = [
        data.texts(config.data.source, split, directory)
        for split in ("train", "validation")
    ]
    path = workdir / "tokenizer.json"
    if config.data.tokenizer:
        tokenizer = bpe.load(config.data.tokenizer)
    elif path.exists():
        tokenizer = bpe.load(path)
    else:
        tokenizer = bpe.train(splits[0], config.data.vocab_size)
    if tokenizer.get_vocab_size() != config.data.vocab_size:
        raise ConfigError(
            f"the tokenizer has {tokenizer.get_vocab_size()} tokens, "
            f"data.vocab_size={config.data.vocab_size}: make them equal"
        )
    workdir.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path))
    return tokenizer, splits[0], splits[1]


def stream(config: Any, tokenizer: tokenizers.Tokenizer, texts: list[str]) -> Any:
    """The training batches of a config."""

    def ids(text: str) -> tuple[int, ...]:
        return tuple(tokenizer.encode(text).ids)

    corpus = data.Corpus(list(bpe.encode(tokenizer, texts)), separator=0)
    how = repeats.Repeats(
        share=config.data.repeat_share,
        markers=tuple(ids(text) for text in config.data.markers),
        comment=ids("\n# "),
        newline=ids("\n"),
    )
    stages = tuple(data.Stage(*stage) for stage in config.data.stages)
    logging.info("%d training tokens, %d steps", len(corpus), sum(s.steps for s in stages))
    return data.Stream(corpus, stages, config.seed, how)


def optimizer(config: Any, steps: int) -> Any:
    """Muon for the layers and Adam for the rest, both warm-up/stable/decay."""
    t = config.train
    muon, adam = (
        optimizers.warmup_stable_decay(peak, steps, t.warmup, t.decay)
        for peak in (t.muon_rate, t.adam_rate)
    )
    return optimizers.muon(muon, adam, weight_decay=t.weight_decay)


def train(config: Any, workdir: pathlib.Path, batches: data.Stream) -> fit.Result:
    """Run (or resume) `fit` for the config's model on `batches`."""
    shape = model_config(config)
    t = config.train
    params = transformer.transformer(shape).init(jax.random.key(config.seed))
    count = sum(int(np.size(x)) for x in jax.tree.leaves(params))
    logging.info("%d parameters", count)
    return fit.fit(
        params,
        next_token.objective(shape),
        optimizer(config, batches.steps),
        data.DataIterator(batches),
        steps=batches.steps,
        workdir=workdir,
        rows_at_once=t.rows_at_once,
        clip=t.clip,
        save_every=t.save_every,
        keep=t.keep,
        log_every=t.log_every,
    )


def run(config: Any, workdir: str | pathlib.Path) -> dict[str, Any]:
    """Train, measure and export; resumes where it stopped. Returns the figures."""
    workdir = pathlib.Path(workdir)
    tokenizer, texts, held_out = read_data(config, workdir)
    result = train(config, workdir, stream(config, tokenizer, texts))
    del held_out
    return {"step": result.step, "seconds": result.seconds}
