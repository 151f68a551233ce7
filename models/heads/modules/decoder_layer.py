"""The decoder layer of draft heads, and what else several heads share.

Params are plain dicts whose shapes determine the architecture. Weights are `[in, out]`.
The layer has the shapes of the target's own layers by default (`geometry`); its inputs
may be wider than its outputs (EAGLE-3).
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from kernels.dispatch import AUTO
from models import base
from models.cache_layouts import kv_cache
from models.distributed import sharding
from models.errors import ConfigError
from models.transformer import (
    cached_attention,
    config,
    rematerialisation,
    sequence_attention,
    sequence_forward,
)
from models.transformer.modules import (
    NEGATIVE,
    product,
    rotate,
    rotations,
    split_heads,
)

Params = dict[str, Any]


def geometry(target: Any) -> config.Config:
    """Return the config of a head's one layer: a Llama layer of the target's size.

    A target that is no transformer has only a width: the layer then has one head.
    """
    shared: dict[str, Any] = {
        "n_layers": 1,
        "windows": (),
        "rope_of": (),
        "shapes": (),
        "kinds": (),
        "latent": None,
        "norm": "rms",
        "norm_offset": 0.0,
        "position": "rope",
        "gated": True,
        "qkv_bias": False,
        "out_bias": False,
        "mlp_bias": False,
        "qk_norm": False,
        "qk_norm_whole": False,
        "pre_norms": True,
        "v_norm": False,
        "layer_scalar": False,
        "sinks": False,
        "gate_limit": 0.0,
        "post_norms": False,
        "attention_scale": 0.0,
        "attention_softcap": 0.0,
        "final_softcap": 0.0,
    }
    if isinstance(target, config.Config):
        return replace(target, **{**shared, **_heads(target)})
    dim = target.d_model
    return config.Config(
        vocab_size=target.vocab_size,
        d_model=dim,
        n_heads=1,
        n_kv_heads=1,
        head_dim=dim,
        d_ff=2 * dim,
        max_positions=target.max_positions,
        ropes=(config.rope(dim, 10000.0),),
        **shared,
    )


def _heads(target: config.Config) -> dict[str, Any]:
    """Return the fields of a layer's heads: the target's, or those of its kind.

    The first rope of the layers that have most heads' width; latent attention, whose
    cache has one wide head, has heads of its values' width.
    """
    if target.latent:
        dim = target.latent.value
        own = {"ropes": (config.rope(dim, 10000.0),)}
        return {"n_kv_heads": target.n_heads, "head_dim": dim, **own}
    layers = map(target.layer, range(target.n_layers))
    alike = {x.rope for x in layers if x.head_dim == target.head_dim} - {-1}
    first = min(alike) if target.shapes and alike else 0
    ropes = target.ropes[first : first + 1]
    return {"ropes": ropes or (config.rope(target.head_dim, 10000.0),)}


def of(layer: Params, target: Any, rope_theta: float = 0.0) -> config.Config:
    """Return `geometry` with the heads and widths of an actual layer.

    `rope_theta` is that of a head with a plain RoPE of its own; 0: the target's RoPE.
    """
    _, groups, heads, dim = layer["qkv"].shape
    base_ = geometry(target)
    ropes = base_.ropes
    if rope_theta or base_.head_dim != dim:
        ropes = (config.rope(dim, rope_theta or 10000.0),)
    return replace(
        base_,
        n_heads=groups * (heads - 2),
        n_kv_heads=groups,
        head_dim=dim,
        d_ff=layer["down"].shape[0],
        ropes=ropes,
    )


def init_layer(key: Array, c: config.Config, inputs: int = 0) -> Params:
    """Draw float32 params of a layer without its first norm; `inputs` 0: `d_model`."""
    keys = jax.random.split(key, 4)
    width = inputs or c.d_model
    heads = (c.n_kv_heads, c.n_heads // c.n_kv_heads + 2, c.head_dim)
    out = c.n_heads * c.head_dim
    return {
        "qkv": normal(keys[0], (width, *heads), width),
        "out": normal(keys[1], (out, c.d_model), 2 * out),
        "norm": jnp.ones((c.d_model,)),
        "up": normal(keys[2], (c.d_model, 2, c.d_ff), c.d_model),
        "down": normal(keys[3], (c.d_ff, c.d_model), 2 * c.d_ff),
    }


def normal(key: Array, shape: tuple[int, ...], fan: int) -> Array:
    """Draw float32 normals of variance 1 / fan."""
    return jax.random.normal(key, shape, jnp.float32) * fan**-0.5


def joint(x: Array, kernel: Array) -> Array:
    """Multiply `x[..., K, in]`, summed over both, by `kernel[K, in, out]`."""
    if sharding.active() is not None:  # as in `product`
        both = (((x.ndim - 2, x.ndim - 1), (0, 1)), ((), ()))
        return summed(lax.dot_general(x, kernel, both))
    return x.reshape(*x.shape[:-2], -1) @ kernel.reshape(-1, kernel.shape[-1])


def summed(x: Array) -> Array:
    """Keep the width of `x[..., D]` whole: a product of cut rows is summed at once.

    Left to itself the compiler cuts it as the next product's rows are cut, and pieces
    go round the devices.
    """
    return sharding.constrain(x, "* " * (x.ndim - 1) + "-")


def rms(x: Array, scale: Array, eps: float) -> Array:
    """Apply RMSNorm in float32; return the dtype of `x`."""
    y = x.astype(jnp.float32)
    y = y * lax.rsqrt((y * y).mean(-1, keepdims=True) + eps)
    return (y * scale.astype(jnp.float32)).astype(x.dtype)


def qkv(layer: Params, c: config.Config, x: Array, positions: Array) -> tuple:
    """Project x [B, N, in] to q `[B, N, G, R, d]`, k and v `[B, N, G, d]`.

    q is scaled; q and k are rotated by `positions` int32[B, N].
    """
    q, k, v = split_heads(product(x, layer["qkv"]))
    cos, sin = rotations(c, positions, c.max_positions)[0]
    q = rotate(q, cos[:, :, None, None], sin[:, :, None, None])
    k = rotate(k, cos[:, :, None], sin[:, :, None])
    return q * c.head_dim**-0.5, k, v


def feed_forward(layer: Params, c: config.Config, x: Array) -> Array:
    """Return `x + MLP(norm(x))`, or `[x ; x] + MLP(norm(x))` of a double-width MLP."""
    up = product(rms(x, layer["norm"], c.norm_eps), layer["up"])
    y = product(jax.nn.silu(up[..., 0, :]) * up[..., 1, :], layer["down"])
    return jnp.tile(x, y.shape[-1] // x.shape[-1]) + y


def sequence(
    layer: Params,
    c: config.Config,
    x: Array,
    residual: Array,
    segments: Array | None = None,
) -> Array:
    """Run the layer over whole sequences, causally; return [B, T, D].

    Attention is rematerialised: otherwise the backward pass holds its scores together
    with all that the MLP's gradient needs.

    Args:
        layer: the params.
        c: the layer's config.
        x: [B, T, in], the input of attention.
        residual: [B, T, D], added to attention's output.
        segments: int32[B, T], keeps packed documents apart.
    """
    length = x.shape[1]
    positions = sequence_forward.places(x.shape[:2], segments)
    mask = sequence_forward.causal(length, segments)
    mask = jnp.broadcast_to(mask, (x.shape[0], length, length))

    def attention(layer: Params, x: Array) -> Array:
        q, k, v = qkv(layer, c, x, positions)
        return product(sequence_attention.attend(c, q, k, v, mask), layer["out"])

    out = rematerialisation.remat(attention)(layer, x)
    return feed_forward(layer, c, residual + out)


def unroll(
    layer: Params,
    c: config.Config,
    read: Callable[[Array, Array], tuple[Array, Array]],
    embedded: Array,
    first: Array,
    steps: int,
    each: Callable[[Array, Array], Any],
    finish: Callable[[Array], Array] = lambda output: output,
    remat: bool = True,
    segments: Array | None = None,
) -> Any:
    """Run `steps` steps of the layer on its own outputs, at every position of a text.

    In step s the pair at t is (token t + 1 + s, the output of step s - 1 at t). It sees
    the pairs 0..t of step 0, made from `first`, and the pairs of steps 1..s at t: what
    a chain of drafts after t would see.

    Args:
        layer: the params.
        c: the layer's config.
        read: maps (embedded, output) to the layer's input and residual.
        embedded: [B, T, D]; at t, of token t + 1.
        first: [B, T, D], used in place of an output in step 0.
        steps: the number of steps.
        each: called as `each(s, outputs)` in every step.
        finish: maps the layer's output to the step's output.
        remat: whether the backward pass recomputes the steps.
        segments: int32[B, T], keeps packed documents apart.

    Returns:
        The results of `each`, stacked [steps, ...].
    """
    batch, length = embedded.shape[:2]
    at = sequence_forward.places((batch, length), segments)
    seen = sequence_forward.causal(length, segments)[:, None, None]

    def attention(s: Array, x: Array, keys: Array, values: Array) -> tuple:
        q, k, v = qkv(layer, c, x, at + s)
        keys, values = keys.at[s].set(k), values.at[s].set(v)
        past = jnp.einsum("btgrd,bsgd->bgrts", q, keys[0]).astype(jnp.float32)
        drafted = jnp.einsum("btgrd,jbtgd->bgrtj", q, keys[1:]).astype(jnp.float32)
        past = jnp.where(seen, past, NEGATIVE)
        drafted = jnp.where(jnp.arange(1, steps) <= s, drafted, NEGATIVE)
        p = jax.nn.softmax(jnp.concatenate([past, drafted], -1), -1).astype(v.dtype)
        out = jnp.einsum("bgrts,bsgd->btgrd", p[..., :length], values[0])
        out = out + jnp.einsum("bgrtj,jbtgd->btgrd", p[..., length:], values[1:])
        return out.reshape(batch, length, -1), keys, values

    def step(carry: tuple, s: Array) -> tuple:
        output, embedded, keys, values = carry
        x, residual = read(embedded, output)
        out, keys, values = attention(s, x, keys, values)
        hidden = feed_forward(layer, c, residual + product(out, layer["out"]))
        output = finish(hidden)
        following = jnp.roll(embedded, -1, 1)
        return (output, following, keys, values), each(s, output)

    empty = jnp.zeros((steps, batch, length, c.n_kv_heads, c.head_dim), first.dtype)
    start = (first, embedded, empty, empty)
    body = rematerialisation.remat(step) if remat else step
    return lax.scan(body, start, jnp.arange(steps))[1]


def block(
    layer: Params,
    c: config.Config,
    cache: kv_cache.KVCache,
    x: Array,
    residual: Array,
    nodes: base.Block,
) -> tuple[Array, kv_cache.KVCache]:
    """Run the layer over a block of nodes, whose keys are appended to `cache`.

    Args:
        layer: the params.
        c: the layer's config.
        cache: a cache of one layer.
        x: [B, N, in], the input of attention.
        residual: [B, N, D], added to attention's output.
        nodes: the block's positions, slots and visibility.

    Returns:
        The output [B, N, D], and the cache.
    """
    cache = cache.open(nodes)
    q, k, v = qkv(layer, c, x, nodes.positions)
    store = cache.layers[0].append(nodes.slots, k, v)
    attend = cached_attention.over_cache(c, nodes, cache, AUTO)(0)
    out = product(attend(q, store), layer["out"])
    return feed_forward(layer, c, residual + out), replace(cache, layers=(store,))


def cache(layer: Params, batch: int, size: int) -> kv_cache.KVCache:
    """Make an empty cache of one layer, in the dtype of its weights."""
    _, groups, _, dim = layer["qkv"].shape
    return kv_cache.dense(1, batch, size, groups, dim, layer["qkv"].dtype)


def check(name: str, target: Any, width: int, vocab: int | None = None) -> None:
    """Refuse params of heads for another target, by their width and vocabulary."""
    if width != target.d_model:
        raise ConfigError(
            f"the {name} heads are for a target of width {width}, this one has "
            f"{target.d_model}: use the target that they were trained on"
        )
    if vocab is not None and vocab != target.vocab_size:
        raise ConfigError(
            f"the {name} heads have a vocabulary of {vocab}, the target one of "
            f"{target.vocab_size}: use the target that they were trained on"
        )


def output_rows(params: Any) -> Array:
    """Return a transformer's output rows [V, D], tied or separate."""
    embedding = params["embedding"]
    return embedding["head"] if "head" in embedding else embedding["tokens"]
