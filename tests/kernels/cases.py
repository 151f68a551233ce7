"""Random calls of tree attention, and their meaning in float64 numpy."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kernels import int4_packing
from kernels.tree_attention import pallas_tpu
from models.base import pack_bits
from tests.models.blocks import path_of, random_tree


@dataclasses.dataclass(frozen=True)
class Case:
    """Static facts; the rows' lengths, trees and holes come from `seed`."""

    nodes: int
    groups: int = 2
    heads: int = 2  # query heads of a KV head
    dim: int = 64
    size: int = 400
    dtype: Any = jnp.float32
    cache: Any = None
    window: int = 0
    softcap: float = 0.0
    causal: bool = False
    biased: bool = False
    seed: int = 0

    @property
    def scaled(self) -> bool:
        return np.dtype(self.cache or self.dtype).itemsize == 1

    @property
    def tolerance(self) -> float:
        """fp32 sums of 400 terms; bf16 rounds q, k, the weights and the output."""
        return 2e-6 if self.dtype == jnp.float32 else 2e-2


def call_shape(case: Case, given: dict[str, Any], **pages: int) -> pallas_tpu.Shape:
    """The Pallas form's shape of a call with the arrays of `given`."""
    return pallas_tpu.Shape(
        len(given["q"]),
        case.groups,
        case.size,
        case.dim,
        case.nodes,
        case.heads,
        given["q"].dtype,
        given["k"].dtype,
        case.scaled,
        biased=case.biased,
        **settings(case),
        **pages,
    )


def make(case: Case) -> dict[str, Any]:
    """Arguments of a call: rows of length 0, whole blocks of 128, others, and full.

    Node 2 and the last node exist in no row (they see the prefix alone), and nobody
    exists in row 0, which has no prefix either: its nodes see nothing. What nobody
    sees is NaN, positions of unseen slots are far off.
    """
    rng = np.random.default_rng(case.seed)
    free = case.size - case.nodes
    lengths = np.array([0, 0, min(128, free), min(256, free), free // 3, free])
    batch = len(lengths)
    shape = (batch, case.groups, case.size, case.dim)
    heads = case.groups * case.heads
    q = rng.normal(size=(batch, case.nodes, heads, case.dim))
    parents = random_tree(rng, batch, case.nodes)
    if case.causal:
        parents = np.tile(np.arange(-1, case.nodes - 1, dtype=np.int32), (batch, 1))
    own = np.zeros((batch, case.nodes, case.nodes), bool)
    for b in range(1, batch):
        for i in range(case.nodes):
            own[b, i, [0, *path_of(parents[b], i)]] = True
    if not case.causal and case.nodes > 3:
        own[:, [2, case.nodes - 1]] = False
    depth = np.maximum(own.sum(-1) - 1, 0)
    positions = lengths[:, None] + depth
    near = np.tile(np.arange(case.size), (batch, 1))
    for b in range(batch):
        near[b, lengths[b] :] = 10**6
        near[b, lengths[b] : lengths[b] + case.nodes] = positions[b]
    arguments: dict[str, Any] = {
        "q": q,
        "lengths": lengths,
        "own": own,
        "positions": positions,
        "key_positions": near,
    }
    dtype = case.cache or case.dtype
    for name in ("k", "v"):
        values = rng.normal(size=shape)
        if case.scaled:
            most = 7 if int4_packing.packed(dtype) else 100
            scale = np.abs(values).max(-1) / most
            arguments[f"{name}_scale"] = scale
            values = values / scale[..., None]
            whole = dtype in (jnp.int8, int4_packing.DTYPE)
            values = np.round(values) if whole else values
        arguments[name] = values
    unseen = ~visible(case, arguments).any(1)
    if case.biased:  # log counts; hidden slots; NaN where nobody looks
        bias = np.log(rng.integers(1, 9, shape[:3]))
        bias[rng.random(bias.shape) < 0.05] = -np.inf
        arguments["bias"] = np.where(unseen[:, None], np.nan, bias)
    for b in range(batch):
        for name in ("k", "v"):
            if case.scaled:
                arguments[f"{name}_scale"][b][:, unseen[b]] = np.nan
            if dtype not in (jnp.int8, int4_packing.DTYPE):
                arguments[name][b][:, unseen[b]] = np.nan
    return arguments


def device(case: Case, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments as a call takes them."""
    dtype = case.cache or case.dtype

    def stored(name: str) -> jax.Array:
        values = jnp.asarray(arguments[name], jnp.float32)
        return (
            int4_packing.pack(values)
            if int4_packing.packed(dtype)
            else values.astype(dtype)
        )

    given: dict[str, Any] = {
        "q": jnp.asarray(arguments["q"], case.dtype),
        "k": stored("k"),
        "v": stored("v"),
        "lengths": jnp.asarray(arguments["lengths"], jnp.int32),
        "ancestors": pack_bits(jnp.asarray(arguments["own"])),
    }
    if case.window:
        given["positions"] = jnp.asarray(arguments["positions"], jnp.int32)
        given["key_positions"] = jnp.asarray(arguments["key_positions"], jnp.int32)
    if case.biased:
        given["bias"] = jnp.asarray(arguments["bias"], jnp.float32)
    if case.scaled:
        for name in ("k_scale", "v_scale"):
            given[name] = jnp.asarray(arguments[name], jnp.float32)
    return given


def settings(case: Case) -> dict[str, Any]:
    scale = case.dim**-0.5
    return {"window": case.window, "softcap": case.softcap, "scale": scale}


def visible(case: Case, arguments: dict[str, Any]) -> np.ndarray:
    """bool[B, N, S]: the prefix, then the block's own slots."""
    seen = np.zeros((len(arguments["lengths"]), case.nodes, case.size), bool)
    for b, length in enumerate(arguments["lengths"]):
        seen[b, :, :length] = True
        seen[b, :, length : length + case.nodes] = arguments["own"][b]
    if case.window:
        position, key = arguments["positions"], arguments["key_positions"]
        seen &= position[:, :, None] - key[:, None] < case.window
    return seen


def oracle(case: Case, arguments: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Output and log-sum-exp in float64, from what the call was really given."""
    given = device(case, arguments)
    if int4_packing.packed(given["k"].dtype):
        given |= {n: int4_packing.unpack(given[n]) for n in "kv"}
    q, k, v = (np.asarray(given[n].astype(jnp.float32), np.float64) for n in "qkv")
    if case.scaled:
        k = k * arguments["k_scale"].astype(np.float32)[..., None]
        v = v * arguments["v_scale"].astype(np.float32)[..., None]
    seen = visible(case, arguments)
    out, lse = np.zeros(q.shape), np.full(q.shape[:3], -np.inf)
    for b, n, h in np.ndindex(*q.shape[:3]):
        at = seen[b, n]
        if at.any():
            g = h // case.heads
            s = k[b, g, at] @ q[b, n, h] * case.dim**-0.5
            if case.softcap:
                s = np.tanh(s / case.softcap) * case.softcap
            if case.biased:
                s = s + arguments["bias"][b, g, at]
            if np.isneginf(s).all():
                continue
            p = np.exp(s - s.max())
            lse[b, n, h] = s.max() + np.log(p.sum())
            out[b, n, h] = p @ v[b, g, at] / p.sum()
    return out, lse


def distance(got: tuple, expected: tuple) -> float:
    """The largest difference of outputs and of sums; NaN and lone -inf are infinite."""
    worst = 0.0
    for a, b in zip(got, expected):
        a = np.asarray(jnp.asarray(a).astype(jnp.float32), np.float64)
        same = (a == b) | (np.isneginf(a) & np.isneginf(b))
        apart = np.abs(np.where(same, 0, a) - np.where(same, 0, b))
        worst = max(worst, float(np.nan_to_num(apart, nan=np.inf).max()))
    return worst
