"""Falcon's draft: an LSTM and one layer that gives the features of k tokens at once.

Gao, Xie, Xiang, Ji, *Falcon: Faster and Parallel Inference of Large Language Models
through Enhanced Semi-Autoregressive Drafting and Custom-Designed Decoding Tree*, 2025,
arXiv 2412.12639, section 3. With f_t the target's last normed state and e its
embedding, pairs (x_{t+1}, f_t) and blocks of k pairs,

    u_t = LSTM([e(x_{t+1}) ; f_t])           two layers, along the text and the draft
    f^_{s+k} = Layer(u_s)                    which sees all pairs of its own block too
    law of x_{s+k+1} = softmax(W_lm f^_{s+k})

So the block that ends at t gives f^_{t+1} .. f^_{t+k}. These and the tokens drafted
from them are the next block. There is one layer, so keys do not depend on where blocks
begin: a draft's first block is the last k committed pairs. LSTM → `lstm`, gates in the
order i, f, g, o. Heads whose config has no `lstm` have EAGLE's `fuse` in its place:
with k = 1 that is EAGLE.

Deviations: the LSTM runs along the text. In the official code it does not: it is given
[B, S, 2 D] without `batch_first` (models/cnets.py), so it runs along the batch, and a
text of one row has no state. It also has a dropout of 0.1 between its layers.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

from models import base
from models.errors import ConfigError
from models.heads import eagle
from models.heads.modules import decoder_layer, head_config
from models.heads.modules.decoder_layer import Params
from models.transformer import sequence_forward
from models.transformer.modules import NEGATIVE, attend, product

DEEP = 2  # layers of the LSTM


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class HeadConfig:
    lstm: bool = True  # False: EAGLE's fc in its place
    bias: bool = False  # of fc


def by_keys(params: Params) -> HeadConfig:
    """Derive the config of params that carry none."""
    return HeadConfig("lstm" in params, "bias" in params)


def config_of(params: Params) -> HeadConfig:
    return head_config.of(params, by_keys)


def init(key: Array, config) -> Params:
    """Draw float32 params of the layer and the LSTM."""
    c = decoder_layer.geometry(config)
    keys = jax.random.split(key, 1 + 2 * DEEP)
    dim = config.d_model

    def cell(i: int) -> Params:
        width = 2 * dim if i == 0 else dim
        return {
            "input": decoder_layer.normal(keys[1 + 2 * i], (width, 4 * dim), width),
            "state": decoder_layer.normal(keys[2 + 2 * i], (dim, 4 * dim), dim),
            "bias": jnp.zeros(4 * dim),
        }

    lstm = {f"layer_{i}": cell(i) for i in range(DEEP)}
    layer = decoder_layer.init_layer(keys[0], c)
    return {"layer": layer, "lstm": lstm, head_config.CONFIG: HeadConfig()}


def memory(params: Params) -> int:
    """Return the size of the LSTM's state: h and c of every layer."""
    return 2 * DEEP * params["layer"]["norm"].shape[-1]


def fused(params: Params, embedded: Array, feature: Array, state: Array) -> tuple:
    """Compute u [..., D] of one pair from `state` [..., memory], and the next state."""
    if not config_of(params).lstm:
        return eagle.fuse(params, embedded, feature), state
    x = jnp.concatenate([embedded, feature], -1)
    parts = jnp.split(state, 2 * DEEP, -1)
    after: list[Array] = []
    for i in range(DEEP):
        weights = params["lstm"][f"layer_{i}"]
        h, c = parts[2 * i], parts[2 * i + 1]
        x, c = _cell(x @ weights["input"] + h @ weights["state"] + weights["bias"], c)
        after += [x, c]
    return x, jnp.concatenate(after, -1).astype(state.dtype)


def _cell(gates: Array, c: Array) -> tuple[Array, Array]:
    """Compute the next h and c [..., D] from gates [..., 4 D] and c."""
    input_gate, forget_gate, update, output_gate = jnp.split(gates, 4, -1)
    c = jax.nn.sigmoid(forget_gate) * c + jax.nn.sigmoid(input_gate) * jnp.tanh(update)
    return jax.nn.sigmoid(output_gate) * jnp.tanh(c), c


def along(
    params: Params,
    embedded: Array,
    features: Array,
    state: Array,
    at: Array | None = None,
) -> tuple:
    """Run the LSTM over pairs: u [B, T, D], and the state [B, T, memory] after each.

    A layer's products with its inputs are one product for all positions. Only those
    with its state are made step by step, so a step reads a half of the weights or less.

    `state` [B, memory] precedes the first pair. `at` int32[B, T] are the places in
    packed texts: at place 0 the state is reset to zero.
    """
    batch, length = embedded.shape[:2]
    if not config_of(params).lstm:
        states = jnp.broadcast_to(state[:, None], (batch, length, state.shape[-1]))
        return eagle.fuse(params, embedded, features), states
    x = jnp.concatenate([embedded, features], -1)
    parts = jnp.split(state, 2 * DEEP, -1)
    fresh = jnp.zeros((batch, length), bool) if at is None else at == 0
    after: list[Array] = []
    for i in range(DEEP):
        weights = params["lstm"][f"layer_{i}"]
        inputs = x @ weights["input"] + weights["bias"]
        first = (parts[2 * i], parts[2 * i + 1])
        x, c = _layer(weights["state"], inputs, fresh, first)
        after += [x, c]
    return x, jnp.concatenate(after, -1).astype(state.dtype)


def _layer(
    weight: Array, inputs: Array, fresh: Array, first: tuple[Array, Array]
) -> tuple[Array, Array]:
    """Run one layer along texts: its h and c [B, T, D].

    `weight` [D, 4 D] is that of the state, `inputs` [B, T, 4 D] what the inputs give;
    `first` is (h, c) before a text, and zero where `fresh` bool[B, T].
    """

    def step(state: tuple[Array, Array], given: tuple[Array, Array]) -> tuple:
        row, begins = given
        h, c = (jnp.where(begins[:, None], 0, x) for x in state)
        both = _cell(row + h @ weight, c)
        return tuple(x.astype(state[0].dtype) for x in both), both

    given = (inputs.swapaxes(0, 1), fresh.swapaxes(0, 1))
    states: tuple[Array, Array] = lax.scan(step, first, given)[1]
    return states[0].swapaxes(0, 1), states[1].swapaxes(0, 1)


def start(params: Params, batch: int, dtype: Any = jnp.float32) -> Array:
    """Return the LSTM's state before a text: zeros [B, memory]."""
    return jnp.zeros((batch, memory(params)), dtype)


def sequence(
    params: Params,
    target: Any,
    embedded: Array,
    features: Array,
    k: int,
    offset: ArrayLike = 0,
    segments: Array | None = None,
) -> Array:
    """Compute f^ [B, T, D] of whole texts; at s, for token s + k + 1.

    Args:
        params: the head's params.
        target: the target's config.
        embedded: [B, T, D]; at t, of token t + 1.
        features: [B, T, D]; at t, f_t.
        k: the block size.
        offset: blocks begin where k divides s + offset.
        segments: int32[B, T], keeps packed documents apart; s restarts in each.
    """
    layer = params["layer"]
    c = decoder_layer.of(layer, target)
    batch, length = embedded.shape[:2]
    state = start(params, batch, features.dtype)
    at = sequence_forward.places((batch, length), segments)
    packed = None if segments is None else at
    u, _ = along(params, embedded, features, state, packed)
    q, keys, v = decoder_layer.qkv(layer, c, u, at)
    number = (at + offset) // k
    mask = number[:, :, None] >= number[:, None]
    if segments is not None:
        mask = mask & sequence_forward.together(segments)
    out = attend(c, q, keys.swapaxes(1, 2), v.swapaxes(1, 2), mask)
    return decoder_layer.feed_forward(layer, c, u + product(out, layer["out"]))


def unroll(
    params: Params,
    target,
    embedded: Array,
    features: Array,
    depth: int,
    k: int,
    segments: Array | None = None,
) -> list[Array]:
    """Compute f^ [B, T, D] for tokens t + 2 .. t + 1 + depth, on the draft's features.

    The result at t is that of a draft chain after token t + 1 with the text's tokens.
    Arguments are those of `sequence`; returns `depth` arrays.
    """
    layer = params["layer"]
    c = decoder_layer.of(layer, target)
    batch, length = embedded.shape[:2]
    at = sequence_forward.places((batch, length), segments)
    seen = sequence_forward.causal(length, segments)[:, None, None, :, None]
    first = start(params, batch, features.dtype)
    packed = None if segments is None else at
    u, state = along(params, embedded, features, first, packed)
    _, keys, values = decoder_layer.qkv(layer, c, u, at)
    drafted_kv: list[tuple] = []  # keys and values of the drafted pairs

    def block(recent: Array, last: Array) -> Array:
        """Compute f^ [B, T, k, D] of blocks `recent` that end at `last` [B, T]."""
        positions = last[..., None] - (k - 1) + jnp.arange(k, dtype=jnp.int32)
        flat = recent.reshape(batch, length * k, -1)
        q, _, _ = decoder_layer.qkv(layer, c, flat, positions.reshape(batch, -1))
        q = q.reshape(batch, length, k, *q.shape[2:])
        past = jnp.einsum("btngrd,bsgd->bgrtns", q, keys).astype(jnp.float32)
        scores = [jnp.where(seen, past, NEGATIVE)]
        for key, _ in drafted_kv:
            score = jnp.einsum("btngrd,btgd->bgrtn", q, key).astype(jnp.float32)
            scores.append(score[..., None])
        p = jax.nn.softmax(jnp.concatenate(scores, -1), -1).astype(values.dtype)
        out = jnp.einsum("bgrtns,bsgd->btngrd", p[..., :length], values)
        for j, (_, value) in enumerate(drafted_kv):
            share = p[..., length + j].transpose(0, 3, 4, 1, 2)  # [B, T, k, G, R]
            out = out + share[..., None] * value[:, :, None, :, None]
        out = product(out.reshape(batch, length, k, -1), layer["out"])
        return decoder_layer.feed_forward(layer, c, recent + out)

    before = jnp.pad(u, ((0, 0), (k - 1, 0), (0, 0)))
    recent = jnp.stack([before[:, j : j + length] for j in range(k)], 2)
    if segments is not None:
        there = at[..., None] - (k - 1) + jnp.arange(k) >= 0
        recent = jnp.where(there[..., None], recent, 0)
    drafted = block(recent, at)
    outputs = [drafted[:, :, 0]]
    for step in range(1, depth):
        token = jnp.roll(embedded, -step, 1)
        feature = drafted[:, :, (step - 1) % k]
        u, state = fused(params, token, feature, state)
        drafted_kv.append(decoder_layer.qkv(layer, c, u, at + step)[1:])
        recent = jnp.concatenate([recent[:, :, 1:], u[:, :, None]], 2)
        if step % k == 0:
            drafted = block(recent, at + step)
        outputs.append(drafted[:, :, step % k])
    return outputs


def note(params: Params, target, cache, u: Array, nodes) -> Any:
    """Append the keys of pairs u [B, N, D] to the cache."""
    layer = params["layer"]
    c = decoder_layer.of(layer, target)
    cache = cache.open(nodes)
    _, keys, values = decoder_layer.qkv(layer, c, u, nodes.positions)
    store = cache.layers[0].append(nodes.slots, keys, values)
    return cache.replace(layers=(store,))


def block(
    params: Params, target, cache, recent: Array, last: Array, seen: base.Visibility
) -> Array:
    """Compute f^ [B, N, k, D] of the blocks that end in N pairs.

    The pairs' keys are in the cache. `recent` [B, N, k, D] is u of each block, `last`
    int32[B, N] the position of its last pair, `seen` that pair's visibility.
    """
    layer = params["layer"]
    c = decoder_layer.of(layer, target)
    batch, nodes, k, dim = recent.shape
    positions = last[..., None] - (k - 1) + jnp.arange(k, dtype=jnp.int32)
    flat = recent.reshape(batch, nodes * k, dim)
    q, _, _ = decoder_layer.qkv(layer, c, flat, positions.reshape(batch, -1))
    mask = jnp.repeat(base.dense_mask(seen, cache.size), k, 1)
    keys, values = cache.layers[0].read()
    out = product(attend(c, q, keys, values, mask), layer["out"])
    features = decoder_layer.feed_forward(layer, c, flat + out)
    return features.reshape(recent.shape)


def check(params: Params, target, k: int) -> None:
    decoder_layer.check("Falcon", target, params["layer"]["norm"].shape[-1])
    if k < 1:
        raise ConfigError(f"k={k}: use at least 1, the tokens of a block")
