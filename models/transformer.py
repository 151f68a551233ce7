"""One decoder-only transformer for every supported family, in Flax Linen.

Only this package sees a Module: `transformer(config)` returns a `base.LanguageModel` of
pure functions over a param tree with one subtree per layer (`layer_0`, ...). Layers are
unrolled, because a scan over stacked params copies each layer's weights at every step;
`stack_layers` gives the stacked form for training deep models.

Weights are `[out, in]` and fused (qkv per KV group `[G, H/G + 2, d, D]`, gate-up
`[F, 2, D]`): a product then reads each weight once, in storage order, and tensor
parallelism splits the leading axis with no permutes.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array, lax

from models import base, cache as caches
from models.errors import ConfigError

NEGATIVE = -1e30

ACTIVATIONS: dict[str, Callable] = {
    "silu": nn.silu,
    "gelu": lambda x: nn.gelu(x, approximate=False),
    "gelu_tanh": lambda x: nn.gelu(x, approximate=True),
    "relu": nn.relu,
}


@dataclass(frozen=True)
class Rope:
    """Rotary embedding: one frequency per pair of rotated dimensions.

    `long` replaces `frequencies` in caches of more than `original` slots (LongRoPE).
    `parameters` is the config.json dict that it came from, as sorted pairs.
    """

    frequencies: tuple[float, ...]
    scale: float = 1.0  # multiplies cos and sin
    long: tuple[float, ...] = ()
    original: int = 0
    parameters: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Config:
    """The shape of a transformer; `models/checkpoints` fills it from config.json."""

    vocab_size: int
    d_model: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    d_ff: int
    max_positions: int
    norm: str = "rms"  # rms | layer
    norm_eps: float = 1e-5
    norm_offset: float = 0.0  # Gemma stores scale - 1
    activation: str = "silu"
    gated: bool = True
    position: str = "rope"  # rope | learned | alibi | none
    position_offset: int = 0  # OPT's table starts at 2
    ropes: tuple[Rope, ...] = ()  # layer i uses ropes[rope_of[i]]
    rope_of: tuple[int, ...] = ()
    windows: tuple[int, ...] = ()  # 0: full attention; one per layer
    attention_scale: float = 0.0  # 0: 1 / sqrt(head_dim)
    attention_softcap: float = 0.0
    final_softcap: float = 0.0
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    post_norms: bool = False  # Gemma 2/3: a norm after attention and after the MLP
    tied: bool = True
    embed_scale: float = 1.0
    bos: int | None = None
    eos: tuple[int, ...] = field(default=())

    def __post_init__(self) -> None:
        if self.n_heads % self.n_kv_heads:
            raise ConfigError(
                f"n_heads={self.n_heads} is no multiple of n_kv_heads="
                f"{self.n_kv_heads}: set n_kv_heads to a divisor"
            )
        for name, choices in (
            ("norm", ("rms", "layer")),
            ("activation", tuple(ACTIVATIONS)),
            ("position", ("rope", "learned", "alibi", "none")),
        ):
            if getattr(self, name) not in choices:
                raise ConfigError(
                    f"{name}={getattr(self, name)!r}: use one of {choices}"
                )
        if self.position == "rope" and not self.ropes:
            raise ConfigError(
                "position='rope' needs `ropes`: see transformer.rope(...)"
            )

    def window(self, layer: int) -> int:
        return self.windows[layer] if self.windows else 0

    def rope(self, layer: int) -> int:
        return self.rope_of[layer] if self.rope_of else 0


def rope_frequencies(dim: int, theta: float) -> tuple[float, ...]:
    """Inverse frequencies `theta^(-2i/dim)`, i < dim/2 (RoFormer, arXiv 2104.09864)."""
    return tuple(theta ** (-2 * i / dim) for i in range(dim // 2))


def rope(dim: int, theta: float) -> Rope:
    """The plain rotary embedding of `dim` dimensions."""
    source = (("rope_theta", theta), ("rope_type", "default"))
    return Rope(rope_frequencies(dim, theta), parameters=source)


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


def product(x: Array, kernel: Array) -> Array:
    """`x[..., in]` times `kernel[out, in]`; the layout that is read in storage order."""
    return lax.dot_general(x, kernel, (((x.ndim - 1,), (1,)), ((), ())))


class Attention(nn.Module):
    """Projections of one layer; what is attended to is the caller's business."""

    config: Config

    def setup(self) -> None:
        c = self.config
        heads = (c.n_kv_heads, c.n_heads // c.n_kv_heads + 2, c.head_dim)
        width = c.n_heads * c.head_dim
        init = nn.initializers.normal(c.d_model**-0.5)
        out = nn.initializers.normal((2 * c.n_layers * width) ** -0.5)
        self.qkv = self.param("qkv", init, (*heads, c.d_model))
        self.out = self.param("out", out, (c.d_model, width))
        if c.qkv_bias:
            self.qkv_bias = self.param("qkv_bias", nn.initializers.zeros, heads)
        if c.out_bias:
            self.out_bias = self.param("out_bias", nn.initializers.zeros, (c.d_model,))
        if c.qk_norm:
            self.q_norm = Norm(c, c.head_dim)
            self.k_norm = Norm(c, c.head_dim)

    def project(self, x: Array, rotation: tuple[Array, Array] | None) -> tuple:
        """q `[B, N, G, R, d]`, k and v `[B, N, G, d]`; q is scaled."""
        c = self.config
        qkv = product(x, self.qkv.reshape(-1, c.d_model))
        qkv = qkv.reshape(*x.shape[:-1], *self.qkv.shape[:3])
        if c.qkv_bias:
            qkv = qkv + self.qkv_bias
        q, k, v = qkv[..., :-2, :], qkv[..., -2, :], qkv[..., -1, :]
        if c.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        if rotation is not None:
            cos, sin = rotation
            q = rotate(q, cos[:, :, None, None], sin[:, :, None, None])
            k = rotate(k, cos[:, :, None], sin[:, :, None])
        return q * (c.attention_scale or c.head_dim**-0.5), k, v

    def merge(self, out: Array) -> Array:
        """Heads `[B, N, H * d]` back to the model's width."""
        y = product(out, self.out)
        return y + self.out_bias if self.config.out_bias else y


def rotate(x: Array, cos: Array, sin: Array) -> Array:
    """Rotate pairs `(i, i + r/2)` of the first `r` dimensions; the rest pass through."""
    half = cos.shape[-1]
    dtype = x.dtype
    a = x[..., :half].astype(jnp.float32)
    b = x[..., half : 2 * half].astype(jnp.float32)
    parts = [(a * cos - b * sin).astype(dtype), (b * cos + a * sin).astype(dtype)]
    if 2 * half < x.shape[-1]:
        parts.append(x[..., 2 * half :])
    return jnp.concatenate(parts, -1)


def attend(
    config: Config, q: Array, k: Array, v: Array, mask: Array, bias: Array | None = None
) -> Array:
    """Softmax attention: q `[B, N, G, R, d]`, k and v `[B, G, S, d]` -> `[B, N, H d]`.

    `mask` bool[B, N, S]; `bias` float32[G, R, B, N, S] or None. A node that sees nothing
    gets the mean of all values: finite, and never read.
    """
    batch, nodes, groups, heads, dim = q.shape
    rows = nodes * heads
    q = q.transpose(0, 2, 1, 3, 4).reshape(batch, groups, rows, dim)
    s = lax.dot_general(
        q, k, (((3,), (3,)), ((0, 1), (0, 1))), preferred_element_type=jnp.float32
    )
    s = s.reshape(batch, groups, nodes, heads, -1)
    if config.attention_softcap:
        s = jnp.tanh(s / config.attention_softcap) * config.attention_softcap
    if bias is not None:
        s = s + bias.transpose(2, 0, 3, 1, 4)
    s = jnp.where(mask[:, None, :, None], s, NEGATIVE)
    p = jnp.exp(s - s.max(-1, keepdims=True))
    total = p.sum(-1, keepdims=True).reshape(batch, groups, rows, 1)
    p = p.reshape(batch, groups, rows, -1).astype(v.dtype)
    out = lax.dot_general(
        p, v, (((3,), (2,)), ((0, 1), (0, 1))), preferred_element_type=jnp.float32
    )
    out = (out / total).astype(v.dtype).reshape(batch, groups, nodes, heads, dim)
    return out.transpose(0, 2, 1, 3, 4).reshape(batch, nodes, -1)


class MLP(nn.Module):
    config: Config

    @nn.compact
    def __call__(self, x: Array) -> Array:
        c = self.config
        act = ACTIVATIONS[c.activation]
        init = nn.initializers.normal(c.d_model**-0.5)
        down_init = nn.initializers.normal((2 * c.n_layers * c.d_ff) ** -0.5)
        shape = (c.d_ff, 2) if c.gated else (c.d_ff,)
        up = self.param("up", init, (*shape, c.d_model))
        down = self.param("down", down_init, (c.d_model, c.d_ff))
        h = product(x, up.reshape(-1, c.d_model)).reshape(*x.shape[:-1], *shape)
        if c.mlp_bias:
            h = h + self.param("up_bias", nn.initializers.zeros, shape)
        h = act(h[..., 0]) * h[..., 1] if c.gated else act(h)
        y = product(h, down)
        if c.mlp_bias:
            y = y + self.param("down_bias", nn.initializers.zeros, (c.d_model,))
        return y


class Layer(nn.Module):
    """One block: `attention` and `mlp` each return what is added to the residual."""

    config: Config

    def setup(self) -> None:
        c = self.config
        self.attention_norm = Norm(c, c.d_model)
        self.attention = Attention(c)
        self.mlp_norm = Norm(c, c.d_model)
        self.mlp = MLP(c)
        if c.post_norms:
            self.post_attention_norm = Norm(c, c.d_model)
            self.post_mlp_norm = Norm(c, c.d_model)

    def project(self, x: Array, rotation: tuple[Array, Array] | None) -> tuple:
        return self.attention.project(self.attention_norm(x), rotation)

    def merge(self, out: Array) -> Array:
        y = self.attention.merge(out)
        return self.post_attention_norm(y) if self.config.post_norms else y

    def feed_forward(self, x: Array) -> Array:
        y = self.mlp(self.mlp_norm(x))
        return self.post_mlp_norm(y) if self.config.post_norms else y

    def __call__(self, x: Array, mask: Array, rotation: Any, bias: Any) -> Array:
        q, k, v = self.project(x, rotation)
        k, v = k.swapaxes(1, 2), v.swapaxes(1, 2)
        x = x + self.merge(attend(self.config, q, k, v, mask, bias))
        return x + self.feed_forward(x)


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
            self.head = self.param("head", init, (c.vocab_size, c.d_model))
        self.norm = Norm(c, c.d_model)

    def embed(self, tokens: Array, positions: Array) -> Array:
        c = self.config
        x = self.tokens[tokens]
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
        y = product(x, self.tokens if c.tied else self.head).astype(jnp.float32)
        if c.final_softcap:
            y = jnp.tanh(y / c.final_softcap) * c.final_softcap
        return y

    def __call__(self, tokens: Array) -> Array:
        return self.logits(self.norm(self.embed(tokens, jnp.zeros_like(tokens))))


def rotations(config: Config, positions: Array, size: int) -> list:
    """(cos, sin) float32[B, N, r/2] of each rope, for caches of `size` slots."""
    out = []
    for r in config.ropes:
        long = bool(r.long) and size > r.original
        frequencies = jnp.asarray(r.long if long else r.frequencies, jnp.float32)
        angle = positions[..., None].astype(jnp.float32) * frequencies
        out.append((jnp.cos(angle) * r.scale, jnp.sin(angle) * r.scale))
    return out or [None]


def alibi_slopes(heads: int) -> list[float]:
    """Slopes of ALiBi (Press et al. 2021, arXiv 2108.12409, section 3)."""
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    extra = [2 ** (-4 * (2 * i + 1) / power) for i in range(heads - power)]
    return slopes + extra


class _Views:
    """Masks and biases of one block, made once per distinct window and shared."""

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


def transformer(config: Config, cache_dtype: Any = jnp.float32) -> base.LanguageModel:
    """The pure functions of a transformer with this config.

    `cache_dtype` is what `init_cache` makes: the dtype of the params, so that the
    products of attention have equal operands.
    """
    layer, embedding = Layer(config), Embedding(config)

    def at(params: Any, i: int) -> dict:
        return {"params": params[f"layer_{i}"]}

    def init(key: Array) -> dict:
        """float32 params of the unstacked form."""
        keys = jax.random.split(key, config.n_layers + 1)
        x = jnp.zeros((1, 1, config.d_model))
        rotation = rotations(config, jnp.zeros((1, 1), jnp.int32), 1)[0]
        mask = jnp.ones((1, 1, 1), bool)
        tokens = jnp.zeros((1, 1), jnp.int32)
        params = {"embedding": embedding.init(keys[0], tokens)["params"]}
        for i in range(config.n_layers):
            variables = layer.init(keys[i + 1], x, mask, rotation, None)
            params[f"layer_{i}"] = variables["params"]
        return params

    def init_cache(batch: int, size: int, dtype: Any = cache_dtype) -> caches.KVCache:
        return caches.dense(
            config.n_layers, batch, size, config.n_kv_heads, config.head_dim, dtype
        )

    def embed(params: Any, tokens: Array, positions: Array) -> Array:
        variables = {"params": params["embedding"]}
        return embedding.apply(variables, tokens, positions, method="embed")

    def norm(params: Any, x: Array) -> Array:
        return embedding.apply({"params": params["embedding"]}, x, method="final_norm")

    def head(params: Any, x: Array) -> Array:
        return embedding.apply({"params": params["embedding"]}, x, method="logits")

    def layers(params, cache, x, block, lo, hi, taps=()):
        """Layers lo <= i < hi over the block; `hidden[i]` is the state after i layers."""
        spun = rotations(config, block.positions, cache.size)
        mask = base.dense_mask(block.visibility, cache.size)
        views = _Views(config, block.positions, cache.pos, mask)
        stores, hidden = list(cache.layers), {}
        for i in range(lo, hi):
            if i in taps:
                hidden[i] = x
            mask = views.window(config.window(i))
            rotation = spun[config.rope(i)]
            attention = attention_of(at(params, i), rotation, block, mask, views.bias)
            mlp = mlp_of(at(params, i))
            if block.run is None:
                x, stores[i] = attention(x, stores[i])
                x = mlp(x)
            else:
                x, stores[i] = lax.cond(
                    block.run[i, 0], attention, lambda x, s: (x, s), x, stores[i]
                )
                x = lax.cond(block.run[i, 1], mlp, lambda x: x, x)
        if hi in taps:
            hidden[hi] = x
        return x, cache.replace(layers=tuple(stores)), hidden

    def attention_of(variables, rotation, block, mask, bias):
        def run(x, store):
            q, k, v = layer.apply(variables, x, rotation, method="project")
            store = store.append(block.slots, k, v)
            out = attend(config, q, *store.read(), mask, bias)
            return x + layer.apply(variables, out, method="merge"), store

        return run

    def mlp_of(variables):
        return lambda x: x + layer.apply(variables, x, method="feed_forward")

    def fill(params, cache, x, block, lo, hi):
        """Write the keys and values that layers lo..hi would see if x passed through."""
        spun = rotations(config, block.positions, cache.size)
        stores = list(cache.layers)
        for i in range(lo, hi):
            rotation = spun[config.rope(i)]
            _, k, v = layer.apply(at(params, i), x, rotation, method="project")
            stores[i] = stores[i].append(block.slots, k, v)
        return cache.replace(layers=tuple(stores))

    return base.LanguageModel(config, init, init_cache, embed, layers, fill, norm, head)


def forward(
    config: Config,
    params: Any,
    tokens: Array,
    segments: Array | None = None,
    taps: tuple[base.Tap, ...] = (),
    remat: bool = False,
) -> base.ModelOutput:
    """Causal logits of whole sequences `tokens[B, T]`, for training: no cache.

    `segments` int32[B, T] keeps packed documents apart (attention within a segment;
    positions restart). `remat` recomputes each layer in the backward pass. `params` may
    be in the unstacked form or, as `{"embedding", "stacked"}`, in the stacked one.
    """
    length = tokens.shape[1]
    index = jnp.arange(length, dtype=jnp.int32)
    mask = jnp.tril(jnp.ones((1, length, length), bool))
    positions = jnp.broadcast_to(index, tokens.shape)
    if segments is not None:
        mask = mask & (segments[:, :, None] == segments[:, None, :])
        starts = jnp.where(segments != jnp.roll(segments, 1, 1), index, 0)
        positions = index - lax.cummax(starts.at[:, 0].set(0), axis=1)
    mask = jnp.broadcast_to(mask, (tokens.shape[0], length, length))
    layer, embedding = Layer(config), Embedding(config)
    top = {"params": params["embedding"]}
    x = embedding.apply(top, tokens, positions, method="embed")
    spun = rotations(config, positions, length)
    views = _Views(config, positions, positions, mask)

    def step(weights, x, i):
        args = (views.window(config.window(i)), spun[config.rope(i)], views.bias)
        return layer.apply({"params": weights}, x, *args)

    if remat:
        step = jax.checkpoint(step, static_argnums=(2,))
    hidden = {}
    if "stacked" in params:
        kinds = {(config.window(i), config.rope(i)) for i in range(config.n_layers)}
        if len(kinds) > 1 or taps:
            raise ConfigError(
                "the stacked form needs equal layers and no taps: use unstack_layers"
            )
        x, _ = lax.scan(lambda x, w: (step(w, x, 0), None), x, params["stacked"])
    else:
        for i in range(config.n_layers):
            if i in taps:
                hidden[i] = x
            x = step(params[f"layer_{i}"], x, i)
        if config.n_layers in taps:
            hidden[config.n_layers] = x
    x = embedding.apply(top, x, method="final_norm")
    if "norm" in taps:
        hidden["norm"] = x
    logits = embedding.apply(top, x, method="logits")
    return base.ModelOutput(logits, base.Hidden(hidden))


def stack_layers(params: dict) -> dict:
    """`{"embedding", "layer_0", ...}` -> `{"embedding", "stacked"}` (leading axis L)."""
    count = sum(name.startswith("layer_") for name in params)
    trees = [params[f"layer_{i}"] for i in range(count)]
    rest = {k: v for k, v in params.items() if not k.startswith("layer_")}
    return {**rest, "stacked": jax.tree.map(lambda *x: jnp.stack(x), *trees)}


def unstack_layers(params: dict) -> dict:
    """The inverse of `stack_layers`."""
    stacked = params["stacked"]
    count = jax.tree.leaves(stacked)[0].shape[0]
    rest = {k: v for k, v in params.items() if k != "stacked"}
    for i in range(count):
        rest[f"layer_{i}"] = jax.tree.map(lambda x, i=i: x[i], stacked)
    return rest
