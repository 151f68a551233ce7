"""The parts of a language-model run whose model is a masked diffusion model.

A recipe with a group `diffusion` trains one: `start`, if any, is an autoregressive
model that it adapts. The mask's row of the embedding comes behind the `data.vocab_size`
others; it begins as their mean.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

import models
from models import transformer
from training.data import documents
from training.evaluation import canvas_quality, diffusion_bound, language_model
from training.loop.train_step import Objective
from training.objectives.language_models import masked_diffusion

BIDIRECTIONAL, BLOCK_CAUSAL = "bidirectional", "block_causal"


def is_diffusion(config: Any) -> bool:
    """Return whether a recipe trains a masked diffusion model."""
    return config.get("diffusion") is not None


def shape(config: Any, plain: transformer.Config) -> transformer.Config:
    """Add a mask token to a Config, and what the recipe trains the model for."""
    d = config.diffusion
    shares = {BIDIRECTIONAL: d.bidirectional, BLOCK_CAUSAL: 1 - d.bidirectional}
    seen = tuple(name for name, share in shares.items() if share > 0)
    return dataclasses.replace(
        plain,
        vocab_size=plain.vocab_size + 1,
        mask_token=plain.vocab_size,
        visibility=seen,
        alignment=d.alignment,
        block_size=d.block_size if BLOCK_CAUSAL in seen else 0,
    )


def extended(params: dict) -> dict:
    """Add the mask's row, the mean of the others, to a model's embedding and head."""
    names = {"tokens", "head"} & set(params["embedding"])
    grown = dict(params["embedding"])
    for name in names:
        rows = grown[name]
        grown[name] = jnp.concatenate([rows, rows.mean(0, keepdims=True)])
    return {**params, "embedding": grown}


def objective(config: Any, of: transformer.Config) -> Objective:
    """Build the recipe's loss."""
    d = config.diffusion
    return masked_diffusion.objective(
        of,
        bidirectional=d.bidirectional,
        blocks=tuple(d.blocks),
        answers_only=d.answers_only,
        anneal=d.anneal,
        seed=config.seed,
    )


def measure(
    config: Any, lm: models.Loaded, held_out: list[np.ndarray]
) -> dict[str, Any]:
    """Measure bounds, hits by mask rate, infilling and repetition on held-out windows.

    Args:
        config: the recipe; `evaluate` has the sizes.
        lm: the model.
        held_out: int32[n], tokens of each held-out document.

    Returns:
        The figures of a model card. `other` is an autoregressive model on the same
        windows: its exact nats, where the recipe has a `start`.
    """
    e, mask = config.evaluate, lm.config.mask_token
    size = e.bound_window + 1
    windows = documents.random_passages(held_out, e.windows, size, config.seed)
    assert lm.tokenizer is not None and mask is not None
    spelled = [len(token) for token in lm.tokenizer.token_bytes()]
    num_bytes = sum(spelled[t] for window in windows for t in window[1:].tolist())
    other = models.load(config.start) if config.get("start", "") else None
    figures: dict[str, Any] = {"window": e.bound_window, "windows": e.windows}
    bounds, hits = {}, {}
    for name in lm.config.visibility:
        block = lm.config.block_size if name == BLOCK_CAUSAL else 0
        law = diffusion_bound.law(lm, block)
        about = (law, windows, mask)
        found = diffusion_bound.bound(
            *about, num_bytes, block, e.draws, seed=config.seed
        )
        bounds[name] = found._asdict()
        each = diffusion_bound.hits(*about, tuple(e.rates), seed=config.seed)
        hits[name] = {f"{rate:g}": share for rate, share in each.items()}
    figures |= {"bounds": bounds, "hits": hits}
    if other is not None:
        figures["other"] = {"name": config.start, "nats": _nats(other, windows)}
    filled = canvas_quality.infilling(lm, windows[: e.cases], e.span, other)
    figures["infilling"] = filled._asdict()
    sizes = (e.prompt_tokens, e.new_tokens)
    figures["repetition"] = canvas_quality.repetition(lm, windows[: e.cases], *sizes)
    figures["repetition_tokens"] = e.new_tokens
    return figures


def _nats(lm: models.Loaded, windows: list[np.ndarray]) -> float:
    """Compute an autoregressive model's mean nats a token; first ones are given."""
    exact = [
        language_model.bits_per_byte(
            lm.config, lm.params, [window[1:]], 1, int(window[0]), len(window), 0
        ).nats_per_token
        for window in windows
    ]
    return float(np.mean(exact))
