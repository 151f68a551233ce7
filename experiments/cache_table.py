"""The README's table of cache policies: their guarantee, what they hold, their cost."""

import importlib
import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import models
from decoding import Spec, base, catalogue

DENSE = "caches/dense"
PROMPT, NEW, BLOCK, BUDGET = 2048, 128, 16, 256
HEADS = ("policy", "with drafts", "holds", "in the prompt", "cost")


def table() -> str:
    """Write a Markdown row per policy, with shares of the dense cache's bytes."""
    lm = models.load("tiny")
    lines = ["| " + " | ".join(HEADS) + " |", "|" + "---|" * len(HEADS)]
    for name in catalogue.of_kind("caches"):
        if name == DENSE:
            continue
        policy = spec(name, lm.config).build(
            {"model": lm.model, "tokenizer": lm.tokenizer, "draft": lm.model}
        )
        text = base.under(base.LAW, name.split("/")[1]) if policy.path_pure else "–"
        shares = [f"{share:.0%}" for share in held(policy, lm.model)]
        link = f"[`{name}`](decoding/{name}.py)"
        lines.append("| " + " | ".join((link, text, *shares, cost(name))) + " |")
    return "\n".join(lines)


def spec(name: str, config: Any) -> Spec:
    """Name a policy at its defaults, with a budget of `BUDGET` slots."""
    known = inspect.signature(Spec(name).factory).parameters
    arguments: dict[str, Any] = {"budget": BUDGET} if "budget" in known else {}
    if "channels" in known:  # measured for a model; their number decides the bytes
        channels = np.arange(config.head_dim).tolist()
        arguments["channels"] = [[channels] * config.n_kv_heads] * config.n_layers
    return Spec(name, **arguments)


def held(policy: base.CachePolicy, model: Any) -> tuple[float, float]:
    """Return a row's shares of the dense cache, while decoding and in the prompt."""
    sizes = base.Sizes(1, PROMPT + NEW + BLOCK, PROMPT, NEW, BLOCK, jnp.float32)
    length = jnp.asarray([PROMPT], jnp.int32)
    make, finish = policy.make, policy.finish
    assert make is not None
    before = jax.eval_shape(lambda: make(model, sizes, length))
    after = before
    if finish is not None:
        after = jax.eval_shape(lambda x: finish(policy.init(x), x)[0], before)
    whole = jax.eval_shape(lambda: model.init_cache(1, sizes.slots, sizes.dtype))
    return nbytes(after) / nbytes(whole), nbytes(before) / nbytes(whole)


def nbytes(tree: Any) -> int:
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def cost(name: str) -> str:
    """Return what a policy's docstring says of its cost, up to the paragraph's end."""
    text = importlib.import_module(f"decoding.{name.replace('/', '.')}").__doc__ or ""
    _, found, rest = text.partition("Cost: ")
    words = " ".join(rest.split("\n\n")[0].split())
    return words if found else "none"
