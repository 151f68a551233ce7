"""Learn2PD from a config: cases of an oracle, a filter fitted, and decoded with.

Beside the filter decode one token a forward, a confidence threshold (`fast_dllm`) and,
as the bound of every filter, the oracle. Texts are compared with those of one token a
forward.
"""

import io
import os
from typing import Any

import jax
import numpy as np
from absl import logging

import decoding
from decoding import Method, Spec
from models import storage
from models.distributed import processes
from models.heads.formats import native
from models.predictors import unmask_filter
from training.data import documents, sources
from training.objectives.predictors import learn2pd
from training.runs import scaffold


def run(config: Any, workdir: str | os.PathLike, lm: Any = None) -> dict[str, Any]:
    """Log cases, fit a filter and decode; resumable.

    `workdir/export` holds the filter, `workdir/figures.json` the figures.

    Args:
        config: the recipe.
        workdir: the folder of the run.
        lm: the loaded diffusion model; None loads `config.model`.

    Returns:
        The figures.
    """
    workdir, lm = storage.path(workdir), scaffold.target(config, lm)
    c, e = config.data, config.evaluate
    both = scaffold.both_splits(config, lm, workdir)
    new = max(c.new_tokens, e.new_tokens)
    prompts = [
        documents.requests(lm, texts, count, c.prompt_tokens, new, config.seed)
        for texts, count in zip(both, (c.prompts, c.held))
    ]
    logged = [
        stored(config, workdir / f"cases-{split}.npz", lm, requests)
        for split, requests in zip(sources.SPLITS, prompts)
    ]
    params, losses = learn2pd.fit(first(config), logged[0], *settings(config))
    held = logged[1]
    figures: dict[str, Any] = {
        "cases": [len(data.conf) for data in logged],
        "final": float(held.final[held.open].mean()),
        "loss": [float(losses[0]), float(losses[-1])],
        "held_loss": float(learn2pd.bce(params, *held[:3])),
        "oracle": held.tokens / held.calls,
        "judged": {f"{t:g}": learn2pd.judged(params, held, t) for t in e.thresholds},
        "decoding": compared(config, lm, prompts[1][: e.prompts], params),
    }
    about = {
        "head": "filter",
        "target": config.model,
        "fingerprint": native.fingerprint(lm.params),
        "block": config.block,
    }
    scaffold.write_export(config, workdir, lambda at: native.save(at, params, about))
    scaffold.write_figures(workdir, figures)
    return figures


def first(config: Any) -> Any:
    """Draw the params of an untrained filter."""
    return unmask_filter.init(jax.random.key(config.seed), config.block, config.hidden)


def settings(config: Any) -> tuple[float, int]:
    """Return rate and steps of the fit."""
    return config.rate, config.steps


def stored(
    config: Any, file: storage.Path, lm: Any, prompts: list[list[int]]
) -> learn2pd.Cases:
    """Return the cases of `prompts`, from `file` if it exists."""
    c = config.data
    if not processes.agreed(file.exists()):
        found = learn2pd.cases(lm, prompts, c.new_tokens, config.block, c.batch)
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **found._asdict())
        processes.written(lambda: storage.write(file, buffer.getvalue()))
        logging.info("%s: %d forwards", file.name, len(found.conf))
    with np.load(io.BytesIO(file.read_bytes())) as data:
        conf, final, is_open = (data[name] for name in learn2pd.Cases._fields[:3])
        return learn2pd.Cases(
            conf, final, is_open, int(data["calls"]), int(data["tokens"])
        )


def methods(c: Any) -> dict[str, Method]:
    """Build the methods: one token a forward, thresholds, and the filter at each of its
    own.
    """
    schedules = {"one a step": Spec("diffusion/llada")}
    for name, values in (
        ("fast_dllm", c.confidences),
        ("learn2pd", c.thresholds),
    ):
        for value in values:
            spec = Spec(f"diffusion/{name}", threshold=float(value))
            schedules[f"{name} {value:g}"] = spec
    policy = learn2pd.REFERENCE.policy
    return {
        name: Method(schedule=(spec,), policy=policy)
        for name, spec in schedules.items()
    }


def compared(
    config: Any, lm: Any, prompts: list[list[int]], params: Any
) -> dict[str, dict[str, float]]:
    """Decode prompts greedily by every method.

    Returns:
        By method `tokens_per_call`, `same` (the share of texts that are those of one
        token a forward) and `shared` (of tokens before the first difference).
    """
    texts: list[list[int]] = []
    rows = {}
    for name, method in methods(config.evaluate).items():
        out = decoding.generate(
            lm,
            prompts,
            method,
            max_new_tokens=config.evaluate.new_tokens,
            drafts={"filter": params},
        )
        found = [list(text) for text in out.tokens]
        texts = texts or found
        shared = [_agreed(x, y) for x, y in zip(found, texts)]
        rows[name] = {
            "tokens_per_call": float(
                out.stats.new_tokens.sum() / out.stats.target_calls.sum()
            ),
            "same": float(np.mean([x == y for x, y in zip(found, texts)])),
            "shared": sum(shared) / max(sum(map(len, texts)), 1),
        }
    return rows


def _agreed(a: list[int], b: list[int]) -> int:
    """Count the tokens before the first difference."""
    return next(
        (i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b))
    )
