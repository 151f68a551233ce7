"""A language model from a config: trained, measured and exported.

Fields that a recipe may leave out: `start`, a model whose weights training begins with;
`train.optimizer`, "muon" or "adamw" (of `train.adam_rate`); `data.facts`, a form of
`planted_facts.FORMS`, with `data.facts_share` and `data.short` of the mixture;
`model.experts` and `model.active`, experts of `model.d_ff` a layer, of which a token
visits some, and `train.balance`, the weight of the loss that spreads tokens over them
(`models/transformer/experts.py`); and
`diffusion`, the fields of a masked diffusion model (`diffusion_model.py`).
"""

import dataclasses
import os
from typing import Any

import jax
import jax.numpy as jnp
import tokenizers
from absl import logging

import models
from models import storage, transformer
from models.checkpoints import rope
from models.distributed import processes, sharding
from models.errors import ConfigError
from models.text import hf_tokenizer
from training.data import (
    copy_augmentation,
    file_groups,
    planted_facts,
    sources,
    text_corpus,
    token_cache,
    train_bpe,
)
from training.evaluation import language_model
from training.loop import fit, optimizers
from training.loop.train_step import Objective
from training.objectives.language_models import next_token
from training.runs import diffusion_model, model_cards, scaffold
from training.runs.diffusion_model import is_diffusion


def model_config(config: Any) -> transformer.Config:
    """Build the transformer's Config from `model` and `data.vocab_size`."""
    m = config.model
    experts = None
    if m.get("experts", 0):
        experts = transformer.Experts(m.experts, m.active, m.d_ff)
    rotary = {"rope_type": "default", "rope_theta": m.rope_theta}
    shape = transformer.Config(
        vocab_size=config.data.vocab_size,
        d_model=m.d_model,
        n_layers=m.n_layers,
        n_heads=m.n_heads,
        n_kv_heads=m.n_kv_heads,
        head_dim=m.head_dim,
        d_ff=m.d_ff,
        max_positions=m.max_positions,
        ropes=(rope.build(rotary, m.head_dim, m.max_positions, "model.rope_theta"),),
        eos=(0,),
    )
    if experts:
        alike = dataclasses.replace(shape.layer(0), experts=experts)
        kinds = (0,) * shape.n_layers
        shape = dataclasses.replace(shape, shapes=(alike,), kinds=kinds)
    return diffusion_model.shape(config, shape) if is_diffusion(config) else shape


def objective(config: Any, shape: transformer.Config) -> Objective:
    """Build the loss: next-token, or masked diffusion's."""
    if is_diffusion(config):
        return diffusion_model.objective(config, shape)
    return next_token.objective(shape, balance=config.train.get("balance", 0.0))


def source_texts(config: Any, split: str, workdir: storage.Path) -> list[str]:
    """Read a split's texts: of a source that has splits, or of its `data.parts`."""
    d = config.data
    if not d.parts:
        return sources.texts(d.source, split, scaffold.data_folder(config, workdir))
    parts = [file_groups.Part(**part) for part in d.parts]
    return file_groups.texts(d.source, parts, split, d.held)


def read_data(
    config: Any, workdir: storage.Path
) -> tuple[tokenizers.Tokenizer, list[str], list[str]]:
    """Return the tokenizer (loaded, or trained on the first split) and both splits."""
    splits = [source_texts(config, split, workdir) for split in file_groups.SPLITS]
    path = workdir / "tokenizer.json"
    if config.data.tokenizer:
        tokenizer = train_bpe.load(config.data.tokenizer)
    elif path.exists():
        tokenizer = train_bpe.load(path)
    else:
        tokenizer = train_bpe.train(splits[0], config.data.vocab_size)
    if tokenizer.get_vocab_size() != config.data.vocab_size:
        raise ConfigError(
            f"the tokenizer has {tokenizer.get_vocab_size()} tokens, but "
            f"data.vocab_size={config.data.vocab_size}: make them equal"
        )
    workdir.mkdir(parents=True, exist_ok=True)
    processes.written(lambda: storage.write(path, tokenizer.to_str(pretty=True)))
    return tokenizer, splits[0], splits[1]


def stream(
    config: Any,
    tokenizer: tokenizers.Tokenizer,
    texts: list[str],
    folder: storage.Path,
) -> text_corpus.Stream:
    """Build the training batches of a config; `folder` caches the encoded texts."""

    def ids(text: str) -> tuple[int, ...]:
        return tuple(tokenizer.encode(text).ids)

    corpus = text_corpus.Corpus(
        token_cache.encoded(tokenizer, texts, folder), separator=0
    )
    repeats = copy_augmentation.Repeats(
        share=config.data.repeat_share,
        markers=tuple(ids(text) for text in config.data.markers),
        comment=ids("\n# "),
        newline=ids("\n"),
    )
    stages = tuple(text_corpus.Stage(*stage) for stage in config.data.stages)
    logging.info(
        "%d training tokens, %d steps", len(corpus), sum(s.steps for s in stages)
    )
    mixture = None
    if form := config.data.get("facts", ""):
        facts = planted_facts.facts(tokenizer, form)
        sizes = (config.data.facts_share, config.data.short)
        mixture = planted_facts.Mixture(facts, *sizes)
    return text_corpus.Stream(
        corpus,
        stages,
        config.seed,
        repeats,
        numbered=is_diffusion(config),
        mixture=mixture,
    )


def optimizer(config: Any, steps: int) -> Any:
    """Make Muon for the layers and Adam for the rest, or AdamW for all params.

    Rates warm up, stay, and decay.
    """
    t = config.train
    name = t.get("optimizer", "muon")
    if name not in ("muon", "adamw"):
        raise ConfigError(f"train.optimizer={name!r}: use 'muon' or 'adamw'")
    if name == "adamw":
        rates = (t.adam_rate, steps, t.warmup, t.decay)
        schedule = optimizers.warmup_stable_decay(*rates)
        return optimizers.adamw(schedule, weight_decay=t.weight_decay)
    muon, adam = (
        optimizers.warmup_stable_decay(peak, steps, t.warmup, t.decay)
        for peak in (t.muon_rate, t.adam_rate)
    )
    return optimizers.muon(muon, adam, weight_decay=t.weight_decay)


def first_params(config: Any, shape: transformer.Config) -> Any:
    """Draw float32 params, or load those of the model `config.start`.

    Raises:
        ConfigError: that model's params have other shapes.
    """
    model = transformer.transformer(shape)
    if not config.get("start", ""):
        return model.init(jax.random.key(config.seed))
    params = models.load(config.start, dtype=jnp.float32).params
    if is_diffusion(config):
        params = diffusion_model.extended(params)
    wanted = jax.eval_shape(model.init, jax.random.key(0))
    sizes = lambda tree: jax.tree.map(lambda x: x.shape, tree)
    if sizes(params) != sizes(wanted):
        raise ConfigError(
            f"start={config.start!r} has other params than a model of these fields of "
            "`model` and `data.vocab_size`: make them equal"
        )
    return params


def train(
    config: Any, workdir: storage.Path, batches: text_corpus.Stream
) -> fit.Result:
    """Run (or resume) `fit` for the config's model on `batches`."""
    shape = model_config(config)
    t = config.train
    params = first_params(config, shape)
    logging.info("%d parameters", scaffold.num_params(params))
    plan = sharding.on(config.get("mesh", ""), "train", config.get("rules", ""), shape)
    return fit.fit(
        params,
        objective(config, shape),
        optimizer(config, batches.steps),
        text_corpus.DataIterator(batches, *sharding.share(plan)),
        workdir,
        fit.FitConfig.from_recipe(t, batches.steps),
        plan=plan,
    )


def rounded(config: Any, params: Any, tokenizer: tokenizers.Tokenizer) -> models.Loaded:
    """Round a trained model for export: weights in bfloat16, with its tokenizer."""
    shape = model_config(config)
    settings = {
        "eos_token": train_bpe.SEPARATOR,
        "model_max_length": shape.max_positions,
        "clean_up_tokenization_spaces": False,
    }
    return models.Loaded(
        transformer.transformer(shape, jnp.bfloat16),
        jax.tree.map(lambda x: x.astype(jnp.bfloat16), params),
        hf_tokenizer.Tokenizer(tokenizer, shape.eos, settings),
        family="mixtral" if shape.shapes else "llama",
    )


def measure(
    config: Any,
    lm: models.Loaded,
    tokenizer: tokenizers.Tokenizer,
    held_out: list[str],
) -> dict[str, Any]:
    """Measure held-out bits per byte of a loaded model, and copying after its markers.

    A recipe whose documents are too short to copy from leaves both markers empty. Of a
    diffusion model bounds are measured: `diffusion_model.measure`.
    """
    documents = list(train_bpe.encode(tokenizer, held_out))
    if is_diffusion(config):
        return diffusion_model.measure(config, lm, documents)
    size = sum(len(text.encode()) for text in held_out)
    e = config.evaluate
    bits = language_model.bits_per_byte(
        lm.config, lm.params, documents, size, window=e.window, context=e.context
    )
    figures = {
        "bits": bits.bits_per_byte,
        "nats": bits.nats_per_token,
        "held_tokens": bits.tokens,
        "held_bytes": bits.bytes,
        "window": e.window,
        "context": e.context,
    }
    for name in ("seen", "unseen"):
        if not e[f"{name}_marker"]:
            continue
        marker = tokenizer.encode(e[f"{name}_marker"]).ids
        copied = language_model.copying(lm, documents, marker, seed=config.seed)
        figures[name] = e[f"{name}_marker"]
        figures[f"{name}_matched"] = copied.matched
        figures[f"{name}_prefix"] = copied.prefix
        figures["cases"], figures["copy_of"] = copied.cases, copied.of
    return figures


def run(config: Any, workdir: str | os.PathLike) -> dict[str, Any]:
    """Train, export and measure; resumable. Returns the figures.

    The export (`config.export`, by default `workdir/export`) holds the weights in
    bfloat16 in HF layout, the tokenizer, and a model card with the figures. They are
    measured on the export, as `models.load` reads it. `workdir/figures.json` holds them
    too.
    """
    workdir = storage.path(workdir)
    tokenizer, texts, held_out = read_data(config, workdir)
    batches = stream(config, tokenizer, texts, workdir)
    result = train(config, workdir, batches)
    shipped = rounded(config, sharding.fetch(result.params), tokenizer)
    save = lambda folder: models.save(shipped, folder)
    folder = scaffold.write_export(config, workdir, save)
    seen = sum(s.steps * s.batch * s.window for s in batches.stages)
    figures = {
        "parameters": scaffold.num_params(result.params),
        "embedding": result.params["embedding"]["tokens"].size,
        "train_files": len(texts),
        "held_files": len(held_out),
        "train_tokens": len(batches.corpus),
        "steps": result.step,
        "seen_tokens": seen,
        "epochs": seen / len(batches.corpus),
        "hours": result.seconds / 3600,
        **measure(config, models.load(folder), tokenizer, held_out),
    }
    scaffold.write_figures(workdir, figures)
    write = model_cards.language_model
    write = model_cards.diffusion_model if is_diffusion(config) else write
    text, card = write(config, figures), folder / "README.md"
    processes.written(lambda: storage.write(card, text))
    return figures
