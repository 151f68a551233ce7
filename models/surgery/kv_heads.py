"""Fewer KV heads: groups of them share a latent, by SVD of keys and values.

Yu, Yang, Li, Li, Wu, *Effectively Compress KV Heads for LLM*, 2024, arXiv 2406.07056.
With the keys K_i [n, d] of `t` heads on calibration tokens, side by side as K [n, t d],

    K = U S V',    c = K V_r,    K_i ≈ c V_{r,i}'

V_r are the first r columns of V and V_{r,i} the d rows of head i: the error is the sum
of the other squared singular values, and no projection to r numbers has less. Values
alike. c is a projection of the layer's input, W_k V_r. The values' basis goes into the
output projection. Without rotary positions that of the keys goes into the queries',
q · (c V_{r,i}') = (q V_{r,i}) · c, and a common transformer with G / t KV heads of r
dimensions results. With them the cache holds c before rotation, and the keys are
expanded when they are read (`models/cache_layouts/latent`). n → `tokens`, t →
`shared`, r → `rank`.

The baseline is mean pooling (Ainslie et al. 2023, arXiv 2305.13245): c is
the heads' mean and each head reads c as it is.

Deviations: the paper fine-tunes with LoRA afterwards; `models/surgery/lora` and the
training recipes can. Heads are grouped as they lie. Cost: see `latent`.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from models.errors import ConfigError
from models.transformer import forward, transformer
from models.transformer.config import Config
from models.transformer.layer import Layer

SVD, MEAN = "svd", "mean"


class Pair(NamedTuple):
    """Maps of groups of `t` heads side by side to a latent and back."""

    encode: np.ndarray  # float64[G / t, t * d, r]
    decode: np.ndarray  # float64[G / t, r, t * d]


def moments(lm: Any, tokens: np.ndarray, shared: int) -> np.ndarray:
    """Sum the products of keys, and of values, over the calibration tokens.

    Args:
        lm: a loaded transformer.
        tokens: int32[n, T], texts.
        shared: heads of a group.

    Returns:
        float64[L, 2, G / t, t * d, t * d]: of the keys, before rotation; of the values.
    """
    config = lm.model.config

    @jax.jit
    def products(params: Any, row: Any) -> Any:
        taps = tuple(range(config.n_layers))
        hidden = forward(config, params, row, taps=taps).hidden
        sums = []
        for i in taps:
            weights = {"params": params[f"layer_{i}"]}
            layer: Any = Layer(config, config.layer(i))
            parts = layer.apply(weights, hidden[i], None, method="project")[1:]
            grouped = [x.reshape(*x.shape[:2], -1, shared * x.shape[3]) for x in parts]
            sums.append(
                [
                    jnp.einsum(
                        "bnga,bngc->gac",
                        *[x.astype(jnp.float32)] * 2,
                        precision="highest",
                    )
                    for x in grouped
                ]
            )
        return sums

    found = [products(lm.params, jnp.asarray(row[None], jnp.int32)) for row in tokens]
    return sum(np.asarray(x, np.float64) for x in found)  # type: ignore[return-value]


def by_svd(moment: np.ndarray, rank: int) -> Pair:
    """Return the best maps to `rank` numbers; `moment` float64[G / t, t * d, t * d]."""
    _, vectors = np.linalg.eigh(moment)  # of rising eigenvalues: squares of S
    basis = vectors[:, :, ::-1][:, :, :rank]
    return Pair(basis, basis.swapaxes(1, 2))


def by_mean(groups: int, shared: int, dim: int) -> Pair:
    """Return the maps to the mean of the heads, and of it to each head."""
    copies = np.tile(np.eye(dim), (groups, shared, 1))
    return Pair(copies / shared, copies.swapaxes(1, 2))


def error(moment: np.ndarray, pair: Pair) -> float:
    """Return the share of the squared norm that is lost on the calibration tokens."""
    lost = np.eye(moment.shape[1]) - pair.encode @ pair.decode
    left = np.einsum("gac,gab,gbc->", lost, moment, lost)
    return float(left / np.trace(moment, axis1=1, axis2=2).sum())


def compress(
    lm: Any, tokens: np.ndarray, shared: int, rank: int = 0, how: str = SVD
) -> Any:
    """Let each `shared` KV heads of a transformer share latents of `rank` numbers.

    Args:
        lm: a loaded transformer; it stays as it is.
        tokens: int32[n, T], calibration texts.
        shared: KV heads of a group; 2 halves the cache, 4 quarters it.
        rank: numbers of a latent; 0: those of one head, the paper's.
        how: "svd", or "mean" for the baseline.

    Returns:
        A loaded transformer, whose cache has `n_kv_heads / shared` heads of `rank`.

    Raises:
        ConfigError: a number out of range, or a model with norms of queries and keys.
    """
    config: Config = lm.model.config
    if config.shapes:
        raise ConfigError(
            f"layers of {len(config.shapes)} shapes: heads are merged in models whose "
            "layers are alike"
        )
    rank = rank or config.head_dim
    most = shared * config.head_dim
    if shared < 1 or config.n_kv_heads % shared:
        raise ConfigError(
            f"shared={shared}: use a divisor of the {config.n_kv_heads} KV heads"
        )
    if not 1 <= rank <= most:
        raise ConfigError(f"rank={rank}: use 1 to {most}, the numbers of a group")
    if how not in (SVD, MEAN):
        raise ConfigError(f"how={how!r}: use {SVD!r} or {MEAN!r}")
    if how == MEAN and rank != config.head_dim:
        raise ConfigError(f"rank={rank}: the mean of heads has {config.head_dim}")
    if config.qk_norm or config.kv_rank:
        raise ConfigError(
            "the model norms its queries and keys, or has latents: use another one"
        )
    groups = config.n_kv_heads // shared
    mean = by_mean(groups, shared, config.head_dim)
    means = [[mean, mean]] * config.n_layers
    pairs = means
    if how == SVD:
        sums = moments(lm, tokens, shared)
        pairs = [[by_svd(moment, rank) for moment in layer] for layer in sums]
    turns = config.position == "rope"
    changes: dict[str, Any] = {"kv_shared": shared, "kv_rank": rank}
    if not turns:
        scale = config.attention_scale or config.head_dim**-0.5
        changes = {"n_kv_heads": groups, "head_dim": rank, "attention_scale": scale}
    params = dict(lm.params)
    for i, (keys, values) in enumerate(pairs):
        name = f"layer_{i}"
        attention = lm.params[name]["attention"]
        new = _attention(config, attention, keys, values, turns)
        params[name] = {**lm.params[name], "attention": new}
    new_config = dataclasses.replace(config, **changes)
    return dataclasses.replace(lm, model=transformer(new_config), params=params)


def _attention(config: Config, old: Any, keys: Pair, values: Pair, turns: bool) -> dict:
    """Return the params of a layer's attention with latents."""
    dim, rank = config.head_dim, keys.encode.shape[2]
    groups = keys.encode.shape[0]
    dtype = old["qkv"].dtype

    def projected(weight: Any) -> tuple[np.ndarray, np.ndarray]:
        """Map q, k and v [..., G, R + 2, d] to q, and k and v [..., G / t, 2, r]."""
        w = np.asarray(weight, np.float64)
        lead = w.shape[:-3]
        k, v = (w[..., at, :].reshape(*lead, groups, -1) for at in (-2, -1))
        each = zip((k, v), (keys, values))
        kv = [np.einsum("...ga,gar->...gr", x, pair.encode) for x, pair in each]
        return w[..., :-2, :], np.stack(kv, -2)

    def asked(q: np.ndarray) -> np.ndarray:
        """Map q [..., G, R, d] to [..., G / t, t * R, r], by the keys' basis."""
        basis = keys.decode.reshape(groups, rank, -1, dim)
        q = q.reshape(*q.shape[:-3], groups, -1, *q.shape[-2:])
        q = np.einsum("...gtqd,grtd->...gtqr", q, basis)
        return q.reshape(*q.shape[:-4], groups, -1, rank)

    out = np.asarray(old["out"], np.float64).reshape(
        config.n_kv_heads, -1, dim, config.d_model
    )
    spread = values.decode.reshape(groups, rank, -1, dim).swapaxes(1, 2)
    by_head = spread.reshape(config.n_kv_heads, rank, dim)
    out = np.einsum("grd,gqdm->gqrm", by_head, out).reshape(-1, config.d_model)
    new: dict[str, Any] = {"out": out}
    for end in ("", "_bias") if "qkv_bias" in old else ("",):
        q, kv = projected(old[f"qkv{end}"])
        if turns:
            new |= {f"queries{end}": q, f"latent{end}": kv}
        else:
            new[f"qkv{end}"] = np.concatenate([asked(q), kv], -2)
    if turns:
        basis = keys.decode.reshape(groups, rank, -1, dim)
        new["key_basis"] = basis.swapaxes(1, 2)
    rest = {n: x for n, x in old.items() if n not in ("qkv", "qkv_bias", "out")}
    return {**rest, **{n: jnp.asarray(x, dtype) for n, x in new.items()}}
