"""StreamingLLM: keep a few first tokens and the newest, at positions in the cache.

Xiao, Tian, Chen, Han, Lewis, *Efficient Streaming Language Models with Attention
Sinks*, 2024, arXiv 2309.17453, section 3.2.

The first `sinks` tokens and the newest `budget` - `sinks` stay, and rotary positions
count within the cache: with shift = tokens evicted, a newer token t is at t - shift and
sink j at j. Attention reads differences alone, so the newer keys stay as they are and
sink j is rotated to j + shift.

Deviations: tokens are evicted every `every`, not each (`every=1` is the paper's).
`rerotate=False` keeps the sinks' own positions, which is another method (kvpress's
default). Cost: an eviction moves the slots that stay.
"""

import jax
import jax.numpy as jnp

from decoding import base
from decoding.cache_eviction import budgets, scored
from decoding.catalogue import Card
from models.cache_layouts.held import full_heads
from models.cache_layouts.kv_cache import DenseLayer
from models.errors import MethodError
from models.transformer.modules import rotate, rotations

CARD = Card(
    paper="arXiv 2309.17453",
    guarantee=base.LOSSY,
    family="eviction",
    needs=("model",),
    sources=("xiao2024streamingllm",),
    examples={"budget": 12, "sinks": 2, "every": 8, "prompt_every": 16},
)


def policy(
    model,
    budget: budgets.Budget = 1024,
    sinks: int = 4,
    rerotate: bool = True,
    layers: budgets.Layers = budgets.UNIFORM,
    every: int = 32,
    prompt_every: int = 128,
) -> base.CachePolicy:
    """Keep the first tokens and the newest.

    Args:
        model: the target's functions.
        budget: slots, sinks included, or a share of the prompt.
        sinks: first tokens that stay; 0: a window alone.
        rerotate: rotary positions count within the cache.
        layers: "uniform", "pyramid", or each layer's weight.
        every: tokens between evictions while decoding.
        prompt_every: tokens between those in the prompt.

    Raises:
        MethodError: a budget without room for the sinks and a token; sinks to be
            rotated in codes.
    """
    if sinks < 0 or (isinstance(budget, int) and budget <= sinks):
        raise MethodError(
            f"budget={budget}, sinks={sinks}: use at least one slot more than sinks"
        )
    config = model.config
    turns = rerotate and sinks and getattr(config, "position", "") == "rope"
    if turns and model.init_layer is not None:
        layer = jax.eval_shape(lambda: model.init_layer(1, 1))
        if not isinstance(layer, DenseLayer):
            raise MethodError(
                f"sinks in the layout {type(layer).__name__}, whose keys cannot be "
                "rotated anew: use rerotate=False, or the dense cache"
            )

    def value(layer, about):
        held = layer.tokens(about.length)
        if turns:
            # Before the first eviction sink j is in slot j, rotated by j.
            raw = _turned(layer, layer.store.k[:, :, :sinks], about, -_index(held))
            known = (layer.shift > 0)[:, None, None, None]
            raw = jnp.where(known, layer.extra["raw"], raw)
            layer = layer.replace(extra={"raw": raw})
        return jnp.where(held < sinks, jnp.inf, held.astype(jnp.float32)), layer

    def place(layer, about):
        if not turns:
            return layer
        at = _index(layer.pos) + layer.shift[:, None]
        k = layer.store.k
        new = _turned(layer, layer.extra["raw"], about, at).astype(k.dtype)
        moved = (layer.shift > 0)[:, None, None, None]
        new = jnp.where(moved, new, k[:, :, :sinks])
        return layer.replace(store=layer.store.replace(k=k.at[:, :, :sinks].set(new)))

    def _index(held):
        index = jnp.arange(sinks, dtype=jnp.int32)
        return jnp.broadcast_to(index, (held.shape[0], sinks))

    def _turned(layer, k, about, by):
        """Rotate keys [B, G, sinks, d] by positions int32[B, sinks]."""
        which = config.rope(about.layer)
        if which < 0:
            return k.astype(jnp.float32)
        spun, scale = (
            rotations(config, by, layer.size)[which],
            config.ropes[which].scale,
        )
        cos, sin = (x[:, None] / scale for x in spun)
        return rotate(k.astype(jnp.float32), cos, sin)

    wide = full_heads(config)[1] if turns else 0
    extra = {"raw": (jnp.float32, (sinks, wide))} if turns else {}
    rule = scored.Rule(value, extra=extra, place=place, exact=True)
    return scored.policy(
        rule,
        budget,
        layers=layers,
        online=True,
        decode=True,
        every=every,
        prompt_every=prompt_every,
    )
