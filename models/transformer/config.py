"""The config of a transformer: its shape and its variants, as data."""

from dataclasses import dataclass, field
from typing import Any

from models.errors import ConfigError

ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu")


@dataclass(frozen=True)
class Rope:
    """Rotary embedding: one frequency per pair of rotated dimensions.

    `long` replaces `frequencies` in caches of more than `original` slots (LongRoPE).
    `parameters` is its dict in config.json, as sorted pairs.
    """

    frequencies: tuple[float, ...]
    scale: float = 1.0  # multiplies cos and sin
    long: tuple[float, ...] = ()
    original: int = 0
    parameters: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Config:
    """The shape of a transformer; `models/checkpoints` reads it from config.json."""

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
    kv_shared: int = (
        1  # KV heads that share a latent key and value of `kv_rank` numbers
    )
    kv_rank: int = (
        0  # 0: each KV head has a key and a value; see `cache_layouts/latent`
    )
    post_norms: bool = False  # Gemma 2/3: a norm after attention and after the MLP
    tied: bool = True
    labels: int = 0  # outputs of the head of a classifier; 0: vocab_size
    embed_scale: float = 1.0
    # What no tensor reveals of a masked diffusion model; see `decoding.denoising`.
    mask_token: int | None = None  # None: autoregressive
    visibility: tuple[str, ...] = ("causal",)  # causal | bidirectional | block_causal
    alignment: str = "same"  # same | shifted: output i is of position i, of i + 1
    block_size: int = 0  # positions of a block of block_causal
    bos: int | None = None
    eos: tuple[int, ...] = field(default=())

    def __post_init__(self) -> None:
        if self.n_heads % self.n_kv_heads:
            raise ConfigError(
                f"n_heads={self.n_heads} is no multiple of n_kv_heads="
                f"{self.n_kv_heads}: set n_kv_heads to a divisor"
            )
        if self.n_kv_heads % self.kv_shared:
            raise ConfigError(
                f"n_kv_heads={self.n_kv_heads} is no multiple of kv_shared="
                f"{self.kv_shared}: set kv_shared to a divisor"
            )
        for name, choices in (
            ("norm", ("rms", "layer")),
            ("activation", ACTIVATIONS),
            ("position", ("rope", "learned", "alibi", "none")),
            ("alignment", ("same", "shifted")),
        ):
            if getattr(self, name) not in choices:
                raise ConfigError(
                    f"{name}={getattr(self, name)!r}: use one of {choices}"
                )
        if self.position == "rope" and not self.ropes:
            raise ConfigError(
                "position='rope' needs `ropes`: make them with transformer.rope(...)"
            )

    def window(self, layer: int) -> int:
        """Return the window of a layer in tokens; 0 for full attention."""
        return self.windows[layer] if self.windows else 0

    @property
    def cached(self) -> tuple[int, int]:
        """The heads of a cache, and the numbers of a key or value in each."""
        if self.kv_rank:
            return self.n_kv_heads // self.kv_shared, self.kv_rank
        return self.n_kv_heads, self.head_dim

    def rope(self, layer: int) -> int:
        """Return the index in `ropes` of a layer's rotary embedding."""
        return self.rope_of[layer] if self.rope_of else 0


def rope_frequencies(dim: int, theta: float) -> tuple[float, ...]:
    """Return the frequencies `theta^(-2i/dim)`, i < dim/2 (RoFormer, arXiv 2104.09864).

    One per pair of rotated dimensions, in radians per position.
    """
    return tuple(theta ** (-2 * i / dim) for i in range(dim // 2))


def rope(dim: int, theta: float) -> Rope:
    """Make the plain rotary embedding of `dim` dimensions."""
    source = (("rope_theta", theta), ("rope_type", "default"))
    return Rope(rope_frequencies(dim, theta), parameters=source)
