"""The Flax modules of the transformer, and attention over a cache.

Weights are `[in, out]` and fused (qkv `[D, G, H/G + 2, d]` by KV group, gate-up
`[D, 2, F]`). A block of a few nodes then costs one pass over each weight. The CPU
compiler would repack `[out, in]` first: a product of 8 rows takes 1.4 to 2.4 times as
long. Tensor parallelism splits G and F with no permutes.
"""

import math
from collections.abc import Callable

import einops
import flax.linen as nn
import jax.numpy as jnp
from jax import Array, lax

from models.distributed import sharding
from models.transformer.config import Config, LayerShape
from models.transformer.low_rank import LowRank

NEGATIVE = -1e30

ACTIVATIONS: dict[str, Callable] = {
    "silu": nn.silu,
    "gelu": lambda x: nn.gelu(x, approximate=False),
    "gelu_tanh": lambda x: nn.gelu(x, approximate=True),
    "relu": nn.relu,
}


class Norm(nn.Module):
    config: Config
    dim: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        c = self.config
        init = nn.initializers.constant(1.0 - c.norm_offset)
        scale = self.param("scale", init, (self.dim,)).astype(jnp.float32)
        dtype, x = x.dtype, x.astype(jnp.float32)
        if c.norm == "layer":
            x = x - x.mean(-1, keepdims=True)
        x = x * lax.rsqrt((x * x).mean(-1, keepdims=True) + c.norm_eps)
        x = x * (scale + c.norm_offset)
        if c.norm == "layer":
            x = x + self.param("bias", nn.initializers.zeros, (self.dim,))
        return x.astype(dtype)


def product(x: Array, kernel: Array | LowRank) -> Array:
    """Multiply `x[..., in]` by `kernel[in, out...]`; return `[..., out...]`."""
    if isinstance(kernel, LowRank):
        return product(x, kernel.weight) + kernel.change(x)
    if sharding.active() is not None:  # merged axes would be moved between devices
        return lax.dot_general(x, kernel, (((x.ndim - 1,), (0,)), ((), ())))
    flat = kernel.reshape(kernel.shape[0], -1)
    return (x @ flat).reshape(*x.shape[:-1], *kernel.shape[1:])


class Attention(nn.Module):
    """The projections of one layer's attention; callers attend between them."""

    config: Config
    shape: LayerShape

    def setup(self) -> None:
        c, (groups, dim) = self.config, (self.shape.n_kv_heads, self.shape.head_dim)
        if c.kv_rank:
            self._setup_latent()
            return
        copies, parts = c.n_heads // groups, 1 if self.shape.key_is_value else 2
        heads, width = (groups, copies + parts, dim), c.n_heads * dim
        init = nn.initializers.normal(c.d_model**-0.5)
        out = nn.initializers.normal((2 * c.n_layers * width) ** -0.5)
        self.qkv = self.param("qkv", init, (c.d_model, *heads))
        self.out = self.param("out", out, (width, c.d_model))
        if c.qkv_bias:
            self.qkv_bias = self.param("qkv_bias", nn.initializers.zeros, heads)
        if c.out_bias:
            self.out_bias = self.param("out_bias", nn.initializers.zeros, (c.d_model,))
        if c.sinks:
            shape, zeros = (groups, c.n_heads // groups), nn.initializers.zeros
            self.sinks = self.param("sinks", zeros, shape)
        if c.qk_norm:
            all_heads = c.qk_norm_whole
            self.q_norm = Norm(c, c.n_heads * dim if all_heads else dim)
            self.k_norm = Norm(c, groups * dim if all_heads else dim)

    def project(self, x: Array, rotation: tuple[Array, Array] | None) -> tuple:
        """Project x [B, N, D] to q `[B, N, G, R, d]`, k and v `[B, N, G, d]`.

        q is scaled; q and k are rotated by `rotation`, (cos, sin) of `rotations`. With
        latents, k and v are these, `[B, N, G / t, r]`, and k is not rotated.
        """
        c = self.config
        if c.kv_rank:
            return self._project_latent(x, rotation)
        qkv = product(x, self.qkv)
        if c.qkv_bias:
            qkv = qkv + self.qkv_bias
        q, k, v = split_heads(qkv, self.shape.key_is_value)
        if c.v_norm:
            v = unit(v, c.norm_eps)
        if c.qk_norm:
            q, k = self._normed(self.q_norm, q), self._normed(self.k_norm, k)
        if rotation is not None:
            cos, sin = rotation
            q = rotate(q, cos[:, :, None, None], sin[:, :, None, None])
            k = rotate(k, cos[:, :, None], sin[:, :, None])
        return q * (c.attention_scale or self.shape.head_dim**-0.5), k, v

    def _normed(self, norm: Norm, x: Array) -> Array:
        """Norm q or k [B, N, .., d], every head or all together."""
        if not self.config.qk_norm_whole:
            return norm(x)
        return norm(x.reshape(*x.shape[:2], -1)).reshape(x.shape)

    def _setup_latent(self) -> None:
        c = self.config
        (groups, rank), copies = c.cached(0), c.n_heads // c.n_kv_heads
        queries, width = (c.n_kv_heads, copies, c.head_dim), c.n_heads * rank
        init = nn.initializers.normal(c.d_model**-0.5)
        out = nn.initializers.normal((2 * c.n_layers * width) ** -0.5)
        self.queries = self.param("queries", init, (c.d_model, *queries))
        self.latent = self.param("latent", init, (c.d_model, groups, 2, rank))
        basis = (groups, c.kv_shared, rank, c.head_dim)
        self.key_basis = self.param("key_basis", init, basis)
        self.out = self.param("out", out, (width, c.d_model))
        zeros = nn.initializers.zeros
        if c.qkv_bias:
            self.queries_bias = self.param("queries_bias", zeros, queries)
            self.latent_bias = self.param("latent_bias", zeros, (groups, 2, rank))
        if c.out_bias:
            self.out_bias = self.param("out_bias", zeros, (c.d_model,))

    def _project_latent(self, x: Array, rotation: tuple[Array, Array] | None) -> tuple:
        c = self.config
        q, kv = product(x, self.queries), product(x, self.latent)
        if c.qkv_bias:
            q, kv = q + self.queries_bias, kv + self.latent_bias
        if rotation is not None:
            cos, sin = rotation
            q = rotate(q, cos[:, :, None, None], sin[:, :, None, None])
        scale = c.attention_scale or c.head_dim**-0.5
        return q * scale, kv[..., 0, :], kv[..., 1, :]

    def merge(self, out: Array) -> Array:
        """Project heads `[B, N, H * d]` back to the model's width `[B, N, D]`."""
        y = product(out, self.out)
        return y + self.out_bias if self.config.out_bias else y


def unit(x: Array, eps: float) -> Array:
    """Divide x [..., d] by the root of its mean square, in float32."""
    wide = x.astype(jnp.float32)
    wide = wide * lax.rsqrt((wide * wide).mean(-1, keepdims=True) + eps)
    return wide.astype(x.dtype)


def split_heads(qkv: Array, key_is_value: bool = False) -> tuple[Array, Array, Array]:
    """Split `[B, N, G, R + 2, d]` into q `[B, N, G, R, d]`, k and v `[B, N, G, d]`.

    With `key_is_value` it is `[B, N, G, R + 1, d]`, and v is k.

    On a mesh of more tensor shards than KV heads, the shards of a group gather its
    heads, of which the weights' last axis was cut. Each keeps its part of q.
    """
    # Without this the compiler cuts R + 2, which the shards do not divide.
    qkv = sharding.constrain(qkv, "* * kv_heads - -")
    own = 1 if key_is_value else 2
    q, k, v = qkv[..., :-own, :], qkv[..., -own, :], qkv[..., -1, :]
    # The same of R: a shard's queries would be passed on from parts of R + 2.
    q = sharding.constrain(q, "* * kv_heads - -")
    return sharding.constrain(q, "* * kv_heads heads -"), k, v


def rotate(x: Array, cos: Array, sin: Array) -> Array:
    """Rotate pairs `(i, i + r/2)` of the first `r` dimensions; the rest pass."""
    half = cos.shape[-1]
    dtype = x.dtype
    a = x[..., :half].astype(jnp.float32)
    b = x[..., half : 2 * half].astype(jnp.float32)
    parts = [(a * cos - b * sin).astype(dtype), (b * cos + a * sin).astype(dtype)]
    if 2 * half < x.shape[-1]:
        parts.append(x[..., 2 * half :])
    return jnp.concatenate(parts, -1)


def turned(k: Array, rotation: tuple[Array, Array] | None) -> Array:
    """Rotate keys `[B, G, S, d]` by (cos, sin) `[B, S, r/2]`, if there are any."""
    if rotation is None:
        return k
    cos, sin = rotation
    return rotate(k, cos[:, None], sin[:, None])


def attend(
    config: Config,
    q: Array,
    k: Array,
    v: Array,
    mask: Array,
    bias: Array | None = None,
    sinks: Array | None = None,
) -> Array:
    """Apply softmax attention; return `[B, N, H d]`.

    A node with an empty mask gets the mean of all values, which is finite and unused.

    Args:
        config: for the soft cap.
        q: `[B, N, G, R, d]`, scaled.
        k: `[B, G, S, d]`.
        v: `[B, G, S, d]`.
        mask: bool[B, N, S].
        bias: float32[G, R, B, N, S] or None.
        sinks: [G, R], a score of every head without a value, neither scaled nor capped;
            or None.
    """
    nodes = q.shape[1]
    q = einops.rearrange(q, "b n g r d -> b g (r n) d")
    s = lax.dot_general(
        q, k, (((3,), (3,)), ((0, 1), (0, 1))), preferred_element_type=jnp.float32
    )
    s = einops.rearrange(s, "b g (r n) s -> b g r n s", n=nodes)
    if config.attention_softcap:
        s = jnp.tanh(s / config.attention_softcap) * config.attention_softcap
    if bias is not None:
        s = s + einops.rearrange(bias, "g r b n s -> b g r n s")
    s = jnp.where(mask[:, None, None], s, NEGATIVE)
    most = s.max(-1, keepdims=True)
    if sinks is not None:
        sink = sinks.astype(jnp.float32)[:, :, None, None]
        most = jnp.maximum(most, sink)
    p = jnp.exp(s - most)
    total = p.sum(-1, keepdims=True)
    if sinks is not None:
        total = total + jnp.exp(sink - most)
    total = einops.rearrange(total, "b g r n x -> b g (r n) x")
    p = einops.rearrange(p, "b g r n s -> b g (r n) s").astype(v.dtype)
    out = lax.dot_general(
        p, v, (((3,), (2,)), ((0, 1), (0, 1))), preferred_element_type=jnp.float32
    )
    out = (out / total).astype(v.dtype)
    return einops.rearrange(out, "b g (r n) d -> b n (g r d)", n=nodes)


def activated(config: Config, h: Array) -> Array:
    """Apply the activation to h [..., 2, F] of a gated MLP, or to [..., F].

    With a limit c (gpt-oss) the gate g, at most c, and u, within +-c, give
    g sigmoid(1.702 g) (u + 1).
    """
    if not config.gated:
        return ACTIVATIONS[config.activation](h)
    gate, up = h[..., 0, :], h[..., 1, :]
    if config.gate_limit:
        gate = jnp.minimum(gate, config.gate_limit)
        up = jnp.clip(up, -config.gate_limit, config.gate_limit)
        return gate * nn.sigmoid(1.702 * gate) * (up + 1)
    return ACTIVATIONS[config.activation](gate) * up


class MLP(nn.Module):
    config: Config
    width: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        c = self.config
        init = nn.initializers.normal(c.d_model**-0.5)
        down_init = nn.initializers.normal((2 * c.n_layers * self.width) ** -0.5)
        shape = (2, self.width) if c.gated else (self.width,)
        up = self.param("up", init, (c.d_model, *shape))
        down = self.param("down", down_init, (self.width, c.d_model))
        h = product(x, up)
        if c.mlp_bias:
            h = h + self.param("up_bias", nn.initializers.zeros, shape)
        y = product(activated(c, h), down)
        if c.mlp_bias:
            y = y + self.param("down_bias", nn.initializers.zeros, (c.d_model,))
        return y


class Embedding(nn.Module):
    """Token (and learned position) embeddings, and the tied or separate head."""

    config: Config

    def setup(self) -> None:
        c = self.config
        init = nn.initializers.normal(c.d_model**-0.5)
        self.tokens = self.param("tokens", init, (c.vocab_size, c.d_model))
        if c.position == "learned":
            rows = c.max_positions + c.position_offset
            self.positions = self.param("positions", init, (rows, c.d_model))
        if not c.tied:
            rows = c.labels or c.vocab_size
            self.head = self.param("head", init, (rows, c.d_model))
        self.norm = Norm(c, c.d_model)

    def embed(self, tokens: Array, positions: Array) -> Array:
        return self.embed_rows(self.token_rows(tokens), positions)

    def token_rows(self, tokens: Array) -> Array:
        return sharding.constrain(self.tokens, "vocab -")[tokens]

    def embed_rows(self, rows: Array, positions: Array) -> Array:
        """Scale and place rows [..., D] of the table, or mixtures of them."""
        c = self.config
        x = rows.astype(self.tokens.dtype)
        if c.embed_scale != 1.0:
            # HF rounds the factor to the weights' dtype before it multiplies.
            x = x * jnp.asarray(c.embed_scale, x.dtype)
        if c.position == "learned":
            x = x + self.positions[positions + c.position_offset]
        return x

    def final_norm(self, x: Array) -> Array:
        return self.norm(x)

    def logits(self, x: Array) -> Array:
        c = self.config
        rows = self.tokens if c.tied else self.head  # [V, D] both: a row is a token
        y = lax.dot_general(x, rows, (((x.ndim - 1,), (1,)), ((), ())))
        return self.capped(y.astype(jnp.float32))

    def logits_of(self, x: Array, ids: Array) -> Array:
        """Compute the logits float32[..., k] of the tokens `ids` [..., k] alone."""
        rows = (self.tokens if self.config.tied else self.head)[ids]
        y = jnp.einsum("...d,...kd->...k", x, rows)
        return self.capped(y.astype(jnp.float32))

    def capped(self, y: Array) -> Array:
        cap = self.config.final_softcap
        return jnp.tanh(y / cap) * cap if cap else y

    def __call__(self, tokens: Array) -> Array:
        return self.logits(self.norm(self.embed(tokens, jnp.zeros_like(tokens))))


def rotations(config: Config, positions: Array, size: int) -> list:
    """Compute (cos, sin) float32[B, N, r/2] of each rope, for caches of `size` slots.

    `positions` is int32[B, N]. The last of the results is None: no rotation.
    """
    out = []
    for r in config.ropes:
        long = bool(r.long) and size > r.original
        frequencies = jnp.asarray(r.long if long else r.frequencies, jnp.float32)
        angle = positions[..., None].astype(jnp.float32) * frequencies
        out.append((jnp.cos(angle) * r.scale, jnp.sin(angle) * r.scale))
    return [*out, None]


def alibi_slopes(heads: int) -> list[float]:
    """Return ALiBi's slopes (Press et al. 2022, arXiv 2108.12409, section 3)."""
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    extra = [2 ** (-4 * (2 * i + 1) / power) for i in range(heads - power)]
    return slopes + extra


class Views:
    """Masks of one block, made once per window size, and its ALiBi bias."""

    def __init__(self, config: Config, positions: Array, key_pos: Array, mask: Array):
        self.mask = mask
        self.distance = positions[:, :, None] - key_pos[:, None, :]
        self.masks = {0: mask}
        self.bias = None
        if config.position == "alibi":
            slopes = jnp.asarray(alibi_slopes(config.n_heads), jnp.float32)
            slopes = slopes.reshape(config.n_kv_heads, -1, 1, 1, 1)
            self.bias = -slopes * self.distance.astype(jnp.float32)

    def window(self, size: int) -> Array:
        if size not in self.masks:
            self.masks[size] = self.mask & (self.distance < size)
        return self.masks[size]
