"""DFlash's draft: one pass over a block of masks that reads the target's features.

Chen, Liang, Liu, *DFlash: Block Diffusion for Flash Speculative Decoding*, 2026, arXiv
2602.06036. With s_1 .. s_n the states that enter n of the target's layers, a the
position of the last token x_a, the anchor, and W the block's slots,

    H_t = norm_h(fc [s_1 ; .. ; s_n]_t)                    for the text's t < a
    block = e(x_a), e(MASK), .., e(MASK)                   at positions a .. a + W - 1
    h_0 .. h_{W-1} = norm(Layers(block; keys and values of H))

    shifted:      law of x_{a+1+k} = softmax(W_lm h_k),    W drafts
    otherwise:    law of x_{a+k} = softmax(W_lm h_k),      slot 0 unused, W - 1 drafts

e and W_lm are the target's. Every layer reads the same H as further keys and values;
slots see all of the block. fc → `fuse` [n, D, D], norm_h → `feature_norm`, norm →
`norm`, the layers → `layer_0` ..; e(MASK) is the target's row `mask_token`, or where
its vocabulary has no token to spare the trained `mask` [D].

Files of the authors and of others name the alignment, the layers' windows and whether
slots see those behind them in their config alone (`HeadConfig`): no tensor shows them.
A window of w tokens ends at the slot and has it, or with `before_anchor` is of the w
tokens before the anchor, as in vLLM's speculators. JetSpec's form, `causal`, is of
arXiv 2606.18394. Laws are 0 outside of a draft vocabulary `kept` int32[V'], rising.

Deviations: none.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from models.cache_layouts import kv_cache
from models.errors import ConfigError
from models.heads.modules import (
    block_head,
    block_layers,
    decoder_layer,
    head_config,
)
from models.heads.modules.decoder_layer import Params
from models.transformer import config

FEATURES = 5  # states that the paper's heads read


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class HeadConfig:
    learned_mask: bool = True  # False: the target's row `mask_token` is the mask's
    mask_token: int = head_config.unseen(-1)
    block: int = head_config.unseen(8)  # W
    shifted: bool = head_config.unseen(False)  # slot k is of the token after it
    causal: bool = head_config.unseen(False)  # in every layer; JetSpec
    windows: tuple[int, ...] = head_config.unseen(())  # of each layer; 0: none
    causal_windows: bool = head_config.unseen(True)  # layers with a window are causal
    rope_theta: float = head_config.unseen(0.0)  # 0: the target's RoPE
    before_anchor: bool = head_config.unseen(False)  # windows are of the text alone
    draft_vocabulary: bool = False  # whether there is `kept`

    def __post_init__(self):
        object.__setattr__(self, "windows", tuple(self.windows))

    @property
    def drafts(self) -> int:
        """Number of tokens that a block guesses."""
        return self.block if self.shifted else self.block - 1

    @property
    def first(self) -> int:
        """The slot of the first guess."""
        return 0 if self.shifted else 1


def by_keys(params: Params) -> HeadConfig:
    """Derive the config of params that carry none."""
    return HeadConfig(learned_mask="mask" in params, draft_vocabulary="kept" in params)


def config_of(params: Params) -> HeadConfig:
    return head_config.of(params, by_keys)


def states(target: Any, own: Sequence[int] = ()) -> tuple[int, ...]:
    """Return the states that a head reads, as numbers of layers that made them.

    By default the paper's five (or as many as a shallow target has), spread from the
    second layer's output to the last but three's. `own` names others, rising.

    Raises:
        ConfigError: `own` names other states than the target has.
    """
    deep = target.n_layers
    if own:
        rising = all(a < b for a, b in itertools.pairwise(own))
        if not rising or own[0] < 0 or own[-1] > deep:
            raise ConfigError(f"taps={tuple(own)}: name states, rising, of 0 to {deep}")
        return tuple(own)
    count = min(FEATURES, max(deep - 3, 1))
    if count == 1:
        return (min(deep // 2 + 1, deep),)
    return tuple(round(1 + i * (deep - 4) / (count - 1)) + 1 for i in range(count))


def init(key: Array, target: Any, **fields: Any) -> Params:
    """Draw a head that is the block alone; `fields` are those of `backbone`."""
    return {"backbone": backbone(key, target, **fields)}


def backbone(
    key: Array,
    target: Any,
    layers: int = 5,
    taps: Sequence[int] = (),
    convolution: int = 0,
    **fields: Any,
) -> Params:
    """Draw float32 params of `layers` layers of the target's size.

    Args:
        key: of the draw.
        target: the target's config.
        layers: of the draft.
        taps: states of the target that are read, if not the default ones.
        convolution: channels that share a kernel of DFlash 2's convolutions; 0: none.
        fields: of `HeadConfig`.

    Raises:
        ConfigError: a block of one slot, or windows of another number of layers.
    """
    settings = HeadConfig(**fields)
    if settings.drafts < 1 or layers < 1:
        raise ConfigError(
            f"block={settings.block}, layers={layers}: a block guesses at least one "
            "token, in at least one layer"
        )
    if len(settings.windows) not in (0, layers):
        raise ConfigError(
            f"windows={settings.windows} for {layers} layers: name one for each, 0 for "
            "a layer without"
        )
    c = decoder_layer.geometry(target)
    dim = target.d_model
    own, count = jax.random.split(key, layers + 2), len(states(target, taps))
    params: Params = {
        "fuse": decoder_layer.normal(own[0], (count, dim, dim), count * dim),
        "feature_norm": jnp.ones(dim),
        "norm": jnp.ones(dim),
        **{
            f"layer_{i}": block_layers.init(own[i + 2], c, convolution)
            for i in range(layers)
        },
        head_config.CONFIG: settings,
    }
    if settings.learned_mask:
        params["mask"] = decoder_layer.normal(own[1], (dim,), dim)
    return params


def layers_of(params: Params) -> list[Params]:
    """Return the layers in their order."""
    count = sum(name.startswith("layer_") for name in params)
    return [params[f"layer_{i}"] for i in range(count)]


def shape(params: Params, target: Any) -> config.Config:
    """Return the config of the layers."""
    own, layers = config_of(params), layers_of(params)
    c = decoder_layer.of(layers[0], target, own.rope_theta)
    return dataclasses.replace(c, n_layers=len(layers), windows=own.windows)


def causal(params: Params) -> tuple[bool, ...]:
    """Return, by layer, whether a slot sees only those before it in the block."""
    own = config_of(params)
    windows = own.windows or (0,) * len(layers_of(params))
    return tuple(own.causal or (bool(w) and own.causal_windows) for w in windows)


def features(params: Params, hidden: Array, eps: float) -> Array:
    """Compute H [..., D] from the target's states [..., n, D]."""
    joined = decoder_layer.joint(hidden, params["fuse"])
    return decoder_layer.rms(joined, params["feature_norm"], eps)


def inputs(params: Params, anchor: Array, mask: Array | None) -> Array:
    """Make a block's inputs [..., W, D] of the anchor's embedding [..., D].

    `mask` [D] is the embedding of the target's mask token; None: there is none.
    """
    own = config_of(params)
    row = params["mask"] if own.learned_mask else mask
    shape = (*anchor.shape[:-1], own.block - 1, anchor.shape[-1])
    masks = jnp.broadcast_to(jnp.asarray(row, anchor.dtype), shape)
    return jnp.concatenate([anchor[..., None, :], masks], -2)


def cache(params: Params, batch: int, size: int) -> kv_cache.KVCache:
    """Make an empty cache of a text of `size` tokens and a block."""
    layers = layers_of(params)
    return block_layers.cache(layers, batch, size + config_of(params).block)


def read(params: Params, target: Any, cache: Any, features: Array, nodes: Any) -> Any:
    """Append the keys of the text's features [B, N, D] to the cache."""
    return block_layers.read(
        layers_of(params), shape(params, target), cache, features, nodes
    )


def block(
    params: Params, target: Any, cache: Any, x: Array, start: Array
) -> tuple[Array, Any]:
    """Run a block: return the last layer's output [B, K, D] where a slot guesses.

    And the cache. `x` [B, W, D] are `inputs`, `start` int32[B] the anchor's position.
    """
    c = shape(params, target)
    layers = layers_of(params)
    early = config_of(params).before_anchor
    y, cache = block_layers.block(layers, c, cache, x, start, causal(params), early)
    return guessing(params, y), cache


def at_anchors(
    params: Params,
    target: Any,
    features: Array,
    x: Array,
    anchors: Array,
    segments: Array | None = None,
) -> Array:
    """Run blocks at anchors int32[B, A] of whole texts: [B, A, K, D], as `block`."""
    c, early = shape(params, target), config_of(params).before_anchor
    y = block_layers.at_anchors(
        layers_of(params), c, features, x, anchors, causal(params), segments, early
    )
    return guessing(params, y)


def guessing(params: Params, y: Array) -> Array:
    """Return the slots of y [..., W, D] that guess: [..., K, D]."""
    return y[..., config_of(params).first :, :]


def normed(params: Params, y: Array, eps: float) -> Array:
    """Compute h [..., D], which the target's head reads."""
    return decoder_layer.rms(y, params["norm"], eps)


def limited(params: Params, laws: Array) -> Array:
    """Set logits [..., V] to -inf outside of the draft vocabulary, if there is one."""
    if not config_of(params).draft_vocabulary:
        return laws
    inside = jnp.zeros(laws.shape[-1], bool).at[params["kept"]].set(True)
    return jnp.where(inside, laws, -jnp.inf)


def check(name: str, params: Params, target: Any, read: Sequence[int]) -> None:
    """Refuse params of a head for another target, or of other states than `read`."""
    decoder_layer.check(name, target, params["fuse"].shape[-1])
    count = params["fuse"].shape[0]
    if count != len(read):
        raise ConfigError(
            f"the {name} heads read {count} states of the target, and taps are "
            f"{tuple(read)}: name those that they were trained on with taps="
        )
    own = config_of(params)
    if not own.learned_mask and not 0 <= own.mask_token < target.vocab_size:
        raise ConfigError(
            f"mask_token={own.mask_token}, and the target has tokens 0 to "
            f"{target.vocab_size - 1}: train a mask (learned_mask=True)"
        )


HEAD = block_head.plain("DFlash")
