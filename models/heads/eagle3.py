"""EAGLE-3's draft: fused features of three layers, trained on its own outputs.

Li, Wei, Zhang, Zhang, *EAGLE-3: Scaling up Inference Acceleration of Large Language
Models via Training-Time Test*, 2025, arXiv 2503.01840, sections 3.1 and 3.2. With
l, m, h the states that enter the target's layers 2, L // 2 and L - 3,

    g_t = fc [l_t ; m_t ; h_t]
    c = [norm_e(e(x_{t+1})) ; norm_g(g_t)],   r = g_t + Attention(c),   a = r + MLP(r)
    law of x_{t+2} = softmax(W norm(a))  over the draft's own vocabulary

and a takes the place of g in the next step: no loss makes it resemble a feature.
fc → `fuse` [3, D, D]; norm_e, norm_g → `embedding_norm`, `feature_norm`; W → `head`
[V', D]; the draft vocabulary is `kept` int32[V'], rising, absent where it is the
target's. `kept` is not trained.

Later heads (vLLM's speculators) apply other norms, by their config. `fuse_norm` norms
l, m and h before fc, each by its own row [3, D] or as one vector [3 D].
`residual_norm` replaces `feature_norm`: r = norm_g(g). `output_norm` replaces `norm`:
the next step reads norm(a).

Deviations: heads that are trained here turn by the target's RoPE, scaling included. The
official trainer's head has base 10000 without scaling whatever the target
(traineagle3/config.json names no rope_theta). Published heads keep theirs. `head`
begins as the target's rows; the official trainer's begins at random.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from models.distributed import sharding
from models.errors import ConfigError
from models.heads.modules import decoder_layer, head_config
from models.heads.modules.decoder_layer import Params


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class HeadConfig:
    draft_vocabulary: bool = False  # whether there is `kept`
    fuse_norm: str = ""  # none, "rows" (one a state) or "whole"
    residual_norm: bool = False
    output_norm: bool = False
    rope_theta: float = head_config.unseen(0.0)  # of the layer; 0: the target's RoPE


def by_keys(params: Params) -> HeadConfig:
    """Derive the config of params that carry none."""
    return HeadConfig(
        draft_vocabulary="kept" in params,
        fuse_norm={1: "whole", 2: "rows"}[params["fuse_norm"].ndim]
        if "fuse_norm" in params
        else "",
        residual_norm="residual_norm" in params,
        output_norm="output_norm" in params,
    )


def config_of(params: Params) -> HeadConfig:
    return head_config.of(params, by_keys)


def taps(config: Any, own: Sequence[int] = ()) -> tuple[int, int, int]:
    """Return the states that the head reads: those entering layers 2, L // 2, L - 3.

    A target with fewer than six layers gives the nearest that exist. `own` names three
    others in rising order; L is the state that leaves the last layer.
    """
    deep = config.n_layers
    if own:
        low, middle, high = own if len(own) == 3 else (0, 0, 0)
        if not 0 <= low < middle < high <= deep:
            raise ConfigError(
                f"taps={tuple(own)}: name three states, rising, of 0 to {deep}"
            )
        return low, middle, high
    return min(2, deep), max(deep // 2, min(1, deep)), max(deep - 3, min(1, deep))


def init(
    key: Array,
    config,
    output: Array,
    kept: np.ndarray | None = None,
    fuse_norm: str = "",
    output_norm: bool = False,
) -> Params:
    """Draw params; the head begins as the target's rows `output` [V, D], or its `kept`.

    `kept` int32[V'] is the draft vocabulary, rising; None: the target's. `fuse_norm`
    and `output_norm` are those of `HeadConfig`; EAGLE-3.1 has both.

    Raises:
        ConfigError: another `fuse_norm`.
    """
    if fuse_norm not in ("", "rows", "whole"):
        raise ConfigError(f"fuse_norm={fuse_norm!r}: use '', 'rows' or 'whole'")
    c = decoder_layer.geometry(config)
    keys = jax.random.split(key, 2)
    dim = config.d_model
    rows = output if kept is None else output[kept]
    params: Params = {
        "fuse": decoder_layer.normal(keys[0], (3, dim, dim), 3 * dim),
        "embedding_norm": jnp.ones(dim),
        "feature_norm": jnp.ones(dim),
        "layer": decoder_layer.init_layer(keys[1], c, 2 * dim),
        "output_norm" if output_norm else "norm": jnp.ones(dim),
        "head": rows.astype(jnp.float32),
        head_config.CONFIG: HeadConfig(
            draft_vocabulary=kept is not None,
            fuse_norm=fuse_norm,
            output_norm=output_norm,
        ),
    }
    if fuse_norm:
        params["fuse_norm"] = jnp.ones((3, dim) if fuse_norm == "rows" else (3 * dim,))
    if kept is not None:
        params["kept"] = jnp.asarray(kept, jnp.int32)
    return params


def shape(params: Params, target):
    """Return the config of the layer."""
    return decoder_layer.of(params["layer"], target, config_of(params).rope_theta)


def features(params: Params, hidden: Array, eps: float) -> Array:
    """Compute g [..., D] from the three states [..., 3, D]."""
    if config_of(params).fuse_norm:
        scale = params["fuse_norm"]
        parts = hidden.reshape(*hidden.shape[:-2], *scale.shape)
        hidden = decoder_layer.rms(parts, scale, eps).reshape(hidden.shape)
    return decoder_layer.joint(hidden, params["fuse"])


def inputs(params: Params, embedded: Array, g: Array, eps: float) -> tuple:
    """Compute c [..., 2 D] and r [..., D] from an embedding and g [..., D]."""
    e = decoder_layer.rms(embedded, params["embedding_norm"], eps)
    if config_of(params).residual_norm:
        r = normed = decoder_layer.rms(g, params["residual_norm"], eps)
    else:
        r, normed = g, decoder_layer.rms(g, params["feature_norm"], eps)
    return jnp.concatenate([e, normed], -1), r


def handed(params: Params, a: Array, eps: float) -> Array:
    """Convert the layer's output a [..., D] to the input of head and next step."""
    return (
        decoder_layer.rms(a, params["output_norm"], eps)
        if config_of(params).output_norm
        else a
    )


def logits(params: Params, a: Array, eps: float) -> Array:
    """Compute float32[..., V'] over the draft vocabulary; `a` is a `handed` result."""
    return scores(params, a, eps).astype(jnp.float32)


def scores(params: Params, a: Array, eps: float) -> Array:
    """Compute `logits` in the dtype of the product."""
    done = config_of(params).output_norm
    x = a if done else decoder_layer.rms(a, params["norm"], eps)
    return x @ params["head"].T


def spread(params: Params, found: Array, vocab: int) -> Array:
    """Place scores `found` [..., V'] in float32[..., V], with -inf elsewhere.

    On a mesh every device has all of `found`, and fills its own part of the vocabulary.
    """
    if not config_of(params).draft_vocabulary:
        return found.astype(jnp.float32)
    kept = params["kept"]
    place = jnp.full((vocab,), -1, jnp.int32).at[kept].set(jnp.arange(kept.size))
    place = sharding.constrain(place, "vocab")
    rows = "batch" + " -" * (found.ndim - 2)
    # First as the head's rows are cut: else the head would be gathered.
    found = sharding.constrain(found, f"{rows} vocab")
    raw = sharding.constrain(found, f"{rows} -")
    there = raw[..., jnp.maximum(place, 0)].astype(jnp.float32)
    whole = jnp.where(place >= 0, there, -jnp.inf)
    return sharding.constrain(whole, f"{rows} vocab")


def block(params: Params, target, cache, embedded: Array, g: Array, nodes):
    """Compute a [B, N, D] of a block of pairs, and the cache with its keys."""
    layer = params["layer"]
    c = shape(params, target)
    x, r = inputs(params, embedded, g, c.norm_eps)
    a, cache = decoder_layer.block(layer, c, cache, x, r, nodes)
    return handed(params, a, c.norm_eps), cache


def most_frequent(tokens: np.ndarray, vocab: int, size: int) -> np.ndarray:
    """Return the `size` commonest tokens of a text, as rising ids int32[size]."""
    if not 1 <= size <= vocab:
        raise ConfigError(f"draft_vocab={size}: use 1 to {vocab}")
    counts = np.bincount(tokens, minlength=vocab)
    order = np.argsort(-counts, kind="stable")[:size]
    return np.sort(order).astype(np.int32)


def check(params: Params, target) -> None:
    small = config_of(params).draft_vocabulary
    vocab = None if small else params["head"].shape[0]
    decoder_layer.check("EAGLE-3", target, params["fuse"].shape[-1], vocab)


def unroll(
    params: Params,
    target: Any,
    embedded: Array,
    g: Array,
    steps: int,
    each: Callable[[Array, Array], Any],
    remat: bool = True,
    segments: Array | None = None,
) -> Any:
    """Run the training-time test (figure 6): `decoder_layer.unroll` from g [B, T, D].

    `each(s, a)` is called in step s with its outputs a [B, T, D].
    """
    layer = params["layer"]
    c = shape(params, target)

    def read(embedded: Array, g: Array) -> tuple:
        return inputs(params, embedded, g, c.norm_eps)

    def finish(a: Array) -> Array:
        return handed(params, a, c.norm_eps)

    return decoder_layer.unroll(
        layer, c, read, embedded, g, steps, each, finish, remat, segments
    )
