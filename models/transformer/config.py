"""The config of a transformer: its shape and its variants, as data."""

from dataclasses import dataclass, field, replace
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
class Experts:
    """A feed-forward of experts: `models/transformer/experts.py` has the formulas."""

    count: int
    active: int  # of a token
    width: int  # of an expert
    router: str = "softmax"  # softmax | sigmoid
    normalised: bool = True  # a token's weights are divided by their sum
    scale: float = 1.0  # multiplies the weights
    groups: int = 1  # of experts, of which a token's are in the `kept_groups` best
    kept_groups: int = 1
    router_bias: bool = False  # of the logits
    choice_bias: bool = False  # of the scores, where experts are chosen alone
    bias: bool = False  # of the experts' products
    shared: int = 0  # width of the experts that every token visits, together
    stored: str = ""  # "mxfp4": `models/transformer/mxfp4.py`; "": as other weights

    def __post_init__(self) -> None:
        if self.router not in ("softmax", "sigmoid"):
            raise ConfigError(f"router={self.router!r}: use 'softmax' or 'sigmoid'")
        if self.stored not in ("", "mxfp4"):
            raise ConfigError(f"stored={self.stored!r}: use '' or 'mxfp4'")
        if not 1 <= self.active <= self.count:
            raise ConfigError(
                f"active={self.active} of {self.count} experts: use 1 to {self.count}"
            )
        if self.count % self.groups or not 1 <= self.kept_groups <= self.groups:
            raise ConfigError(
                f"groups={self.groups}, kept_groups={self.kept_groups} of "
                f"{self.count} experts: use a divisor, and at most as many"
            )
        if self.active > self.count // self.groups * self.kept_groups:
            raise ConfigError(
                f"active={self.active}: {self.kept_groups} of {self.groups} groups "
                f"have {self.count // self.groups * self.kept_groups} experts"
            )


@dataclass(frozen=True)
class Latent:
    """Latent attention: `models/transformer/latent_attention.py` has the formulas."""

    rank: int  # of a token's latent, from which all heads' keys and values come
    turned: int  # numbers of a head's key that are rotated, the same for all heads
    plain: int  # the rest of a head's key
    value: int  # numbers of a head's value
    query_rank: int = 0  # of the latent of queries; 0: none


@dataclass(frozen=True)
class LayerShape:
    """What may differ from layer to layer."""

    n_kv_heads: int
    head_dim: int
    d_ff: int  # of a dense feed-forward
    window: int = 0  # tokens that a token sees, itself included; 0: all
    rope: int = 0  # index in `Config.ropes`; -1: no rotary embedding
    experts: Experts | None = None  # in place of the dense feed-forward
    key_is_value: bool = False  # a value is the key before its norm and rotation


@dataclass(frozen=True)
class Config:
    """The shape of a transformer; `models/checkpoints` reads it from config.json.

    Layers are alike but for `windows` and `rope_of`, or layer i has
    `shapes[kinds[i]]`. `n_kv_heads`, `head_dim` and `d_ff` are then those of most.
    """

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
    gate_limit: float = 0.0  # 0: none; else gpt-oss's gate, see `modules.activated`
    position: str = "rope"  # rope | learned | alibi | none
    position_offset: int = 0  # OPT's table starts at 2
    ropes: tuple[Rope, ...] = ()  # layer i uses ropes[rope_of[i]]
    rope_of: tuple[int, ...] = ()
    windows: tuple[int, ...] = ()  # 0: full attention; one per layer
    shapes: tuple[LayerShape, ...] = ()  # of layers that differ in more
    kinds: tuple[int, ...] = ()  # layer i has shapes[kinds[i]]
    attention_scale: float = 0.0  # 0: 1 / sqrt(head_dim)
    attention_softcap: float = 0.0
    # Each head has a further score whose probability is dropped: `modules.attend`.
    sinks: bool = False
    final_softcap: float = 0.0
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    qk_norm_whole: bool = False  # of all heads together, not of each (OLMo 2)
    kv_shared: int = (
        1  # KV heads that share a latent key and value of `kv_rank` numbers
    )
    kv_rank: int = (
        0  # 0: each KV head has a key and a value; see `cache_layouts/latent`
    )
    # All heads read one key of rank + turned numbers, which `n_kv_heads`, 1, and
    # `head_dim` describe. None: each KV head has a key and a value of its own.
    latent: Latent | None = None
    v_norm: bool = False  # each value is normed, without a scale (Gemma 4)
    layer_scalar: bool = False  # a layer's output is multiplied by a number (Gemma 4)
    pre_norms: bool = True  # a norm before attention and before the MLP
    post_norms: bool = False  # Gemma 2/3, OLMo 2: one after each
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
        self._check_shapes()
        a = self.latent
        if a and (self.n_kv_heads, self.head_dim) != (1, a.rank + a.turned):
            raise ConfigError(
                f"latent attention with n_kv_heads={self.n_kv_heads}, head_dim="
                f"{self.head_dim}: set 1 and rank + turned = {a.rank + a.turned}"
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

    def _check_shapes(self) -> None:
        """Raise ConfigError for shapes that do not give every layer one."""
        if not self.shapes and not self.kinds:
            return
        every = range(len(self.shapes))
        if len(self.kinds) != self.n_layers or any(k not in every for k in self.kinds):
            raise ConfigError(
                f"kinds={self.kinds}: give each of the {self.n_layers} layers the "
                f"number of one of the {len(self.shapes)} shapes"
            )
        if self.windows or self.rope_of:
            raise ConfigError(
                "windows, rope_of and shapes: name windows and ropes in the shapes"
            )
        for shape in self.shapes:
            if self.n_heads % shape.n_kv_heads:
                raise ConfigError(
                    f"n_heads={self.n_heads} is no multiple of a layer's n_kv_heads="
                    f"{shape.n_kv_heads}: set it to a divisor"
                )

    def widened(self) -> "Config":
        """Return the config of the same model with experts' weights as all others."""

        def one(shape: LayerShape) -> LayerShape:
            if shape.experts is None:
                return shape
            return replace(shape, experts=replace(shape.experts, stored=""))

        return replace(self, shapes=tuple(map(one, self.shapes)))

    def layer(self, layer: int) -> LayerShape:
        """Return the shape of a layer."""
        if self.shapes:
            return self.shapes[self.kinds[layer]]
        return LayerShape(
            self.n_kv_heads,
            self.head_dim,
            self.d_ff,
            self.windows[layer] if self.windows else 0,
            self.rope_of[layer] if self.rope_of else 0,
        )

    def window(self, layer: int) -> int:
        """Return the window of a layer in tokens; 0 for full attention."""
        return self.layer(layer).window

    def rope(self, layer: int) -> int:
        """Return the index in `ropes` of a layer's rotary embedding; -1: none."""
        return self.layer(layer).rope

    @property
    def every_window(self) -> tuple[int, ...]:
        """The window of every layer; () where all attention is full."""
        sizes = tuple(map(self.window, range(self.n_layers)))
        return sizes if any(sizes) else ()

    def cached(self, layer: int) -> tuple[int, int]:
        """Return the heads of a layer's cache, and the numbers of a key in each."""
        if self.kv_rank:
            return self.n_kv_heads // self.kv_shared, self.kv_rank
        shape = self.layer(layer)
        return shape.n_kv_heads, shape.head_dim


def rope_frequencies(dim: int, theta: float) -> tuple[float, ...]:
    """Return the frequencies `theta^(-2i/dim)`, i < dim/2 (RoFormer, arXiv 2104.09864).

    One per pair of rotated dimensions, in radians per position.
    """
    return tuple(theta ** (-2 * i / dim) for i in range(dim // 2))


def rope(dim: int, theta: float) -> Rope:
    """Make the plain rotary embedding of `dim` dimensions."""
    source = (("rope_theta", theta), ("rope_type", "default"))
    return Rope(rope_frequencies(dim, theta), parameters=source)
