"""A model whose call costs nothing, to time the rest of a round.

Node `i` of a block gets row `i` modulo ROWS of a fixed random table as logits, whatever
its token. Keys and values are not written. The table is a param, not a constant, so
that arg-max and noise over the vocabulary still run. Texts differ from the real
model's, and acceptance with them: compare times per round. The time is that of draft,
transforms, verification, commit and the loop.
"""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np

from models import base

ROWS = 128  # a chunk of the prompt; wider trees repeat them


def params(like: base.LanguageModel) -> dict[str, Any]:
    """Return {"table": float32[ROWS, V]}, random; no row's best token ends the text."""
    rng = np.random.default_rng(0)
    table = rng.normal(size=(ROWS, like.config.vocab_size)).astype(np.float32)
    table[:, list(like.config.eos)] = -100.0
    return {"table": jnp.asarray(table)}


def language_model(like: base.LanguageModel) -> base.LanguageModel:
    """Return the model with the shapes and the cache of `like`."""
    width = getattr(like.config, "d_model", 1)

    def embed(params, tokens, positions):
        return jnp.zeros((*tokens.shape, width), params["table"].dtype)

    def layers(params, cache, x, block, lo, hi, taps=()):
        return x, cache, dict.fromkeys(taps, x)

    def head(params, x):
        places = x.shape[1:-1]  # nodes; of a head's table, slots and tokens above
        nodes = math.prod(places)
        rows = jnp.tile(params["table"], (-(-nodes // ROWS), 1))[:nodes]
        rows = rows.reshape(*places, -1)
        return jnp.broadcast_to(rows, (len(x), *rows.shape))

    return like._replace(
        embed=embed,
        token_rows=lambda params, tokens: embed(params, tokens, tokens),
        embed_rows=lambda params, rows, positions: rows.astype(params["table"].dtype),
        layers=layers,
        fill=lambda params, cache, x, block, lo, hi: cache,
        norm=lambda params, x: x,
        head=head,
        logits_of=lambda params, x, ids: jnp.take_along_axis(head(params, x), ids, -1),
    )
