"""One decoder-only transformer for every supported family, in Flax Linen.

Flax modules stay inside this package: `transformer(config)` returns a
`base.LanguageModel` of pure functions over a param tree with one subtree per layer
(`layer_0`, ...). Layers are unrolled, because a scan over stacked params copies each
layer's weights at every step; `stack_layers` gives the stacked form for training deep
models.

`modules.py` describes the layout of the weights.
"""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from kernels.dispatch import KERNELS
from models import base
from models.cache_layouts import kv_cache
from models.cache_layouts.joint import joint
from models.cache_layouts.kept import KeptLayer
from models.distributed import sharding
from models.errors import ConfigError
from models.transformer.config import Config
from models.transformer.layer import Layer
from models.transformer.modules import Embedding, rotations
from models.transformer.sparse_attention import over_layers, passed

STATES = "batch - -"  # the axes of a block's states


def transformer(
    config: Config,
    cache_dtype: Any = jnp.float32,
    kernel: str = "auto",
    cache: Callable[..., kv_cache.KVCache] = kv_cache.dense,
) -> base.LanguageModel:
    """Build the pure functions of a transformer.

    Args:
        config: the shape.
        cache_dtype: the dtype of caches. Use that of the params, so that the products
            of attention have equal operands.
        kernel: "auto", "pallas" or "xla", which reads the cache; tokens are the same.
        cache: makes an empty cache: `kv_cache.dense`, or another layout of
            `models.cache_layouts`.
    """
    if kernel not in KERNELS:
        raise ConfigError(f"kernel={kernel!r}: use one of {KERNELS}")
    make_cache = cache
    # `Any`, since Linen's `apply` may also return mutated variables; none here does.
    layers_of: Any = [Layer(config, config.layer(i)) for i in range(config.n_layers)]
    embedding: Any = Embedding(config)

    def at(params: Any, i: int) -> dict:
        return {"params": params[f"layer_{i}"]}

    def init(key: Array) -> dict:
        """Draw float32 params in the unstacked form."""
        keys = jax.random.split(key, config.n_layers + 1)
        x = jnp.zeros((1, 1, config.d_model))
        spun = rotations(config, jnp.zeros((1, 1), jnp.int32), 1)
        mask = jnp.ones((1, 1, 1), bool)
        tokens = jnp.zeros((1, 1), jnp.int32)
        params = {"embedding": embedding.init(keys[0], tokens)["params"]}
        for i, layer in enumerate(layers_of):
            variables = layer.init(keys[i + 1], x, mask, spun[config.rope(i)], None)
            params[f"layer_{i}"] = variables["params"]
        return params

    def init_cache(batch: int, size: int, dtype: Any = cache_dtype) -> kv_cache.KVCache:
        sizes = [config.cached(i) for i in range(config.n_layers)]
        made = kv_cache.of_sizes(make_cache, sizes, batch, size, dtype)
        return joint(made, config.latent.rank) if config.latent else made

    def init_layer(
        batch: int, slots: int, dtype: Any = cache_dtype, layer: int = 0
    ) -> Any:
        made = make_cache(1, batch, slots, *config.cached(layer), dtype)
        made = joint(made, config.latent.rank) if config.latent else made
        return made.layers[0]

    def embed(params: Any, tokens: Array, positions: Array) -> Array:
        variables = {"params": params["embedding"]}
        x = embedding.apply(variables, tokens, positions, method="embed")
        return sharding.constrain(x, STATES)

    def token_rows(params: Any, tokens: Array) -> Array:
        variables = {"params": params["embedding"]}
        return embedding.apply(variables, tokens, method="token_rows")

    def embed_rows(params: Any, rows: Array, positions: Array) -> Array:
        variables = {"params": params["embedding"]}
        x = embedding.apply(variables, rows, positions, method="embed_rows")
        return sharding.constrain(x, STATES)

    def norm(params: Any, x: Array) -> Array:
        return embedding.apply({"params": params["embedding"]}, x, method="final_norm")

    def head(params: Any, x: Array) -> Array:
        variables = {"params": params["embedding"]}
        x = embedding.apply(variables, x, method="logits")
        return sharding.constrain(x, "batch " + "- " * (x.ndim - 2) + "vocab")

    def logits_of(params: Any, x: Array, ids: Array) -> Array:
        variables = {"params": params["embedding"]}
        return embedding.apply(variables, x, ids, method="logits_of")

    def layers(params, cache, x, block, lo, hi, taps=()):
        """Run layers lo <= i < hi; `hidden[i]` is the state after i layers."""
        spun = rotations(config, block.positions, cache.size)
        attend, begin = over_layers(config, block, cache, kernel)
        stores, carry = list(cache.layers), begin()
        hidden: dict[base.Tap, Array] = {}
        visited: list[Array] = []
        for i in range(lo, hi):
            if i in taps:
                hidden[i] = x
            rotation, before, selected = spun[config.rope(i)], x, carry
            slots = base.layer_slots(block, i, cache.size)
            own: Any = attend(i)
            weights = params[f"layer_{i}"]["attention"]
            if config.kv_rank:
                own = functools.partial(own, basis=weights["key_basis"])
            if config.sinks:
                own = functools.partial(own, sinks=weights["sinks"])
            layer = layers_of[i]
            attention = attention_of(layer, at(params, i), rotation, slots, own)
            mlp = mlp_of(layer, at(params, i))
            if block.run is None:
                x, stores[i], carry = attention(x, stores[i], carry)
            else:
                same = lambda *unchanged: unchanged
                x, stores[i], carry = lax.cond(
                    block.run[i, 0], attention, same, x, stores[i], carry
                )
            if block.gate is not None:
                x = jnp.where(block.gate[i][..., None], before, x)
                carry = passed(block.gate[i], selected, carry)
            if base.FFN_INPUT in taps and i == config.n_layers - 1:
                normed = layer.apply(at(params, i), x, method="feed_forward_input")
                hidden[base.FFN_INPUT] = normed
            if base.EXPERTS in taps and config.layer(i).experts:
                visited.append(layer.apply(at(params, i), x, method="routed"))
            if block.run is None:
                x = mlp(x)
            else:
                x = lax.cond(block.run[i, 1], mlp, lambda x: x, x)
            if block.gate is not None:
                x = jnp.where(block.gate[i][..., None], before, x)
        if hi in taps:
            hidden[hi] = x
        if visited:
            hidden[base.EXPERTS] = jnp.stack(visited)
        return x, replace(cache, layers=tuple(stores)), hidden

    def attention_of(layer, variables, rotation, slots, attend):
        def run(x, store, carry):
            q, k, v = layer.apply(variables, x, rotation, method="project")
            store = store.append(slots, k, v)
            if isinstance(store, KeptLayer):
                store = store.noted(
                    slots, q, variables["params"]["attention"].get("sinks")
                )
            out, carry = attend(q, store, carry)
            x = x + layer.apply(variables, out, method="merge")
            return sharding.constrain(x, STATES), store, carry

        return run

    def mlp_of(layer, variables):
        def run(x):
            x = layer.apply(variables, x, method="fed")
            return sharding.constrain(x, STATES)

        return run

    def fill(params, cache, x, block, lo, hi):
        """Write the keys and values of layers lo..hi as if x passed through them."""
        spun = rotations(config, block.positions, cache.size)
        stores = list(cache.layers)
        for i in range(lo, hi):
            rotation = spun[config.rope(i)]
            own = at(params, i)
            _, k, v = layers_of[i].apply(own, x, rotation, method="project")
            stores[i] = stores[i].append(block.slots, k, v)
        return replace(cache, layers=tuple(stores))

    return base.LanguageModel(
        *(config, init, init_cache, embed, layers, fill, norm, head, logits_of),
        token_rows=token_rows,
        embed_rows=embed_rows,
        init_layer=init_layer,
    )
