"""PPD's prompt tokens: trained embeddings with which the target itself guesses ahead.

Chen, Luk, Yiu, Li, Mishchenko, Venieris, Fan, *Hardware-Aware Parallel Prompt Decoding
for Memory-Efficient Acceleration of LLM Inference*, 2024, arXiv 2405.18628, section 3.
Behind token x_t the target reads m prompt tokens z_1 .. z_m instead of text,

    law of x_{t+1+i} = softmax(mean over copies of target(x_1 .. x_t, z_1 .. z_i)),

i = 1 .. m. Of each there may be several copies (the paper's ensemble): copy c of z_i
sees the text and copy c of the prompts before it. z → `prompts` [m, copies, D], all
that is trained: m · copies · D numbers. In a block they bear ids past the vocabulary,
V + (i - 1) copies + c, which the wrapped model embeds.
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
    """Prompts that begin as embeddings of random tokens."""
    shape = (prompts, copies)
    tokens = jax.random.randint(key, shape, 0, model.config.vocab_size)
    rows = model.embed(target, tokens, jnp.zeros(shape, jnp.int32))
    return {"prompts": rows.astype(jnp.float32)}


def counts(params: Params) -> tuple[int, int]:
    """m and the number of copies."""
    return params["prompts"].shape[:2]


def weights(target: Any, params: Params) -> Any:
    """What the wrapped model takes for its params."""
    return {**target, "prompts": params["prompts"]}


def wrapped(model: base.LanguageModel) -> base.LanguageModel:
    """The target, which now embeds the ids of prompts too; else it is what it was."""
    vocab = model.config.vocab_size

    def embed(params: Any, tokens: Array, positions: Array) -> Array:
        known = jnp.minimum(tokens, vocab - 1)
        x = model.embed(params, known, positions)
        rows = params["prompts"].reshape(-1, x.shape[-1]).astype(x.dtype)
        own = rows[jnp.clip(tokens - vocab, 0, rows.shape[0] - 1)]
        # A learned position, of which the rows hold that of place 0; else zero.
        place = x - model.embed(params, known, jnp.zeros_like(positions))
        return jnp.where(tokens[..., None] >= vocab, own + place, x)

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
    """Normed states [B, P, copies, m, D] of the prompts behind `points` of texts.

    `hidden[i]` are the texts' states that enter layer i, of all layers. The gradient
    reaches the prompts through the target, and no other weight.
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
