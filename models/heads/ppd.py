"""PPD's prompt tokens: trained embeddings from which the target drafts by itself.

Chen, Luk, Yiu, Li, Mishchenko, Venieris, Fan, *Hardware-Aware Parallel Prompt Decoding
for Memory-Efficient Acceleration of LLM Inference*, 2024, arXiv 2405.18628, section 3.
Behind token x_t the target reads m prompt tokens z_1 .. z_m instead of text,

    law of x_{t+1+i} = softmax(mean over copies of target(x_1 .. x_t, z_1 .. z_i)),

i = 1 .. m. There may be several copies of each (the paper's ensemble): copy c of z_i
sees the text and copy c of the prompts before it. z → `prompts` [m, copies, D], all
that is trained: m · copies · D numbers. In a block their ids are past the vocabulary,
V + (i - 1) copies + c, and the wrapped model embeds them.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from models import base, transformer
from models.heads.modules import aux_chains, decoder_layer
from models.heads.modules.decoder_layer import Params


def init(
    key: Array,
    model: base.LanguageModel,
    target: Any,
    prompts: int = 3,
    copies: int = 1,
) -> Params:
    """Draw prompts float32[m, copies, D]: the embeddings of random tokens."""
    shape = (prompts, copies)
    tokens = jax.random.randint(key, shape, 0, model.config.vocab_size)
    rows = model.embed(target, tokens, jnp.zeros(shape, jnp.int32))
    return {"prompts": rows.astype(jnp.float32)}


def counts(params: Params) -> tuple[int, int]:
    """Return m and the number of copies."""
    return params["prompts"].shape[:2]


def weights(target: Any, params: Params) -> Any:
    """Join the target's params and the prompts: the params of the wrapped model."""
    return {**target, "prompts": params["prompts"]}


def wrapped(model: base.LanguageModel) -> base.LanguageModel:
    """Wrap the target so that it also embeds the ids of prompts."""
    vocab = model.config.vocab_size

    def embed(params: Any, tokens: Array, positions: Array) -> Array:
        known = jnp.minimum(tokens, vocab - 1)
        x = model.embed(params, known, positions)
        rows = params["prompts"].reshape(-1, x.shape[-1]).astype(x.dtype)
        prompts = rows[jnp.clip(tokens - vocab, 0, rows.shape[0] - 1)]
        # Learned positions: the prompts' rows include position 0, so add the
        # difference. With other positions it is zero.
        place = x - model.embed(params, known, jnp.zeros_like(positions))
        return jnp.where(tokens[..., None] >= vocab, prompts + place, x)

    return model._replace(embed=embed)


def sequence(
    params: Params,
    model: base.LanguageModel,
    target: Any,
    hidden: Any,
    points: Array,
    shape: tuple,
    segments: Array | None = None,
    remat: bool = False,
) -> Array:
    """Compute the final normed states [B, P, copies, m, D] of prompts behind `points`.

    Gradients reach the prompts through the target, and no other weight.

    Args:
        params: the prompts.
        model: the target.
        target: the target's params.
        hidden: the texts' states [B, T, D] that enter each layer i.
        points: int32[B, P], indices into the texts.
        shape: the texts' [B, T].
        segments: int32[B, T], keeps packed documents apart.
        remat: whether the backward pass recomputes each layer.
    """
    count, copies = counts(params)
    texts, positions, mask = aux_chains.after(points, copies, count, shape, segments)
    step, copy = jnp.arange(count), jnp.arange(copies)[:, None]
    ids = (model.config.vocab_size + step * copies + copy).reshape(-1)
    tokens = jnp.broadcast_to(jnp.tile(ids, points.shape[1]), positions.shape)
    x = wrapped(model).embed(weights(target, params), tokens, positions)
    out = transformer.beside(
        model.config, target, hidden, texts, x, positions, mask, 0, remat
    )
    return out.reshape(*points.shape, copies, count, -1)


def check(params: Params, target: Any) -> None:
    decoder_layer.check("PPD", target, params["prompts"].shape[-1])
