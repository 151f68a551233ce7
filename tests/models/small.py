"""A small transformer that the model tests share: three layers, the second slides."""

import numpy as np

from models import base, transformer
from tests.models import blocks

SIZE = 32
CONFIG = transformer.Config(
    vocab_size=50,
    d_model=32,
    n_layers=3,
    n_heads=4,
    n_kv_heads=2,
    head_dim=8,
    d_ff=40,
    max_positions=64,
    ropes=(transformer.rope(8, 100.0),),
    windows=(0, 5, 0),
)
LM = transformer.transformer(CONFIG)
TOLERANCE = 1e-4


PARAMS = blocks.numpy_params(LM)


def random_tokens(seed, *shape):
    rng = np.random.default_rng(seed)
    return rng.integers(0, CONFIG.vocab_size, shape).astype(np.int32)


def close(a, b, tolerance=TOLERANCE):
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), atol=tolerance, rtol=0)


def causal(tokens, size=SIZE, logits_at=base.ALL):
    batch, nodes = tokens.shape
    cache = LM.init_cache(batch, size)
    counts = blocks.ints([nodes] * batch)
    return cache, blocks.causal(
        blocks.ints(tokens), cache.length, counts, size, logits_at
    )
