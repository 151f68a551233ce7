"""Chimera's draft: one decoder layer over trigrams and all of the target's states.

Zeng, Yu, Pang, Wang, Zhuang, Shao, Zou, *Chimera: A Lossless Decoding Method for
Accelerating Large Language Models Inference by Fusing all Tokens*, 2024, arXiv
2402.15758, section 3, in step 0 as in the official code. With h_t the target's last
normed state and e its embedding,

    u = [e(x_{t-1+i}) ; e(x_{t+i}) ; e(x_{t+1+i})],   g_{t,i} = C (u + SiLU(A u + a))
    o_{t,i} = Layer(g_{t,i})   at position t + 1 + i, which sees h_s at position s and
              g_{s,0} of all s <= t, and g_{t,1} .. g_{t,i}
    law of x_{t+2+i} = softmax(U_i [h_t ; o_{t,i}])

Tokens past x_{t+1} are the draft's. Before the text e = 0. A → `mix` [3 D, 3 D],
`mix_bias`; C → `down` [3 D, D]; U → `head` [K, V, 2 D], twice the target's own rows at
first.

Deviations: of the steps i >= 1. The official code runs its layer again over [h ; the
outputs of earlier steps ; the new trigrams], all of them without a gradient, so that
head 0 alone trains the trigrams. There a query sees its own step's trigrams causally,
and of the steps between nothing but its own position. Here it sees g_{s,0} of the text
and the g of its own draft, as the draft's cache holds them, and each head trains the
trigrams of its own step.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from models.heads.modules import decoder_layer
from models.heads.modules.decoder_layer import Params
from models.transformer import sequence_forward
from models.transformer.modules import NEGATIVE, product


def init(key: Array, config, output: Array, heads: int = 4) -> Params:
    """Initialise float32 params of `heads` heads; `output` [V, D] is the target's."""
    c = decoder_layer.geometry(config)
    keys = jax.random.split(key, 2)
    dim = config.d_model
    rows = jnp.concatenate([output, output], 1).astype(jnp.float32)
    return {
        "mix": jnp.zeros((3 * dim, 3 * dim)),
        "mix_bias": jnp.zeros(3 * dim),
        "down": decoder_layer.normal(keys[0], (3 * dim, dim), 3 * dim),
        "layer": {**decoder_layer.init_layer(keys[1], c), "input_norm": jnp.ones(dim)},
        "head": jnp.broadcast_to(rows, (heads, *rows.shape)),
    }


def count(params: Params) -> int:
    return params["head"].shape[0]


def trigram(params: Params, three: Array) -> Array:
    """Compute g [..., D] from the embeddings [..., 3, D] of consecutive tokens."""
    u = three.reshape(*three.shape[:-2], -1)
    z = u + jax.nn.silu(u @ params["mix"] + params["mix_bias"])
    return z @ params["down"]


def logits(params: Params, i: int, hidden: Array, output: Array) -> Array:
    """Compute float32[..., V] of head i from h and o [..., D]."""
    u = jnp.concatenate([hidden, output], -1)
    return (u @ params["head"][i].T).astype(jnp.float32)


def unroll(
    params: Params,
    target,
    hidden: Array,
    embedded: Array,
    steps: int,
    choose: Callable[[int, Array], Array],
    detach: bool = False,
    segments: Array | None = None,
) -> list[Array]:
    """Compute o_0 .. o_{steps-1} [B, T, D] of whole texts, as draft chains would.

    Args:
        params: the head's params.
        target: the target's config.
        hidden: h [B, T, D].
        embedded: [B, T, D]; at t, of token t.
        steps: the number of steps.
        choose: maps (i, o_i) to the embeddings [B, T, D] to use for token t + 2 + i.
        detach: stop gradients through keys and values of other steps.
        segments: int32[B, T], keeps packed documents apart.
    """
    layer = params["layer"]
    c = decoder_layer.of(layer, target)
    batch, length = hidden.shape[:2]
    at = sequence_forward.places((batch, length), segments)
    seen = jnp.tile(sequence_forward.causal(length, segments), (1, 1, 2))[:, None, None]

    def project(x: Array, positions: Array) -> tuple:
        inside = decoder_layer.rms(x, layer["input_norm"], c.norm_eps)
        return decoder_layer.qkv(layer, c, inside, positions)

    _, *below = project(hidden, at)
    before = jnp.pad(embedded, ((0, 0), (1, 0), (0, 0)))[:, :-1]
    if segments is not None:
        before = jnp.where((at > 0)[..., None], before, 0)
    three = jnp.stack([before, embedded, jnp.roll(embedded, -1, 1)], 2)
    drafted: list[tuple] = []  # keys and values of the steps 1, 2, ...
    outputs: list[Array] = []
    first: Any = None
    for i in range(steps):
        g = trigram(params, three)
        q, k, v = project(g, at + 1 + i)
        if i == 0:
            first = tuple(jnp.concatenate(pair, 1) for pair in zip(below, (k, v)))
        else:
            drafted.append((k, v))
        past = jnp.einsum("btgrd,bsgd->bgrts", q, first[0]).astype(jnp.float32)
        scores, values = [jnp.where(seen, past, NEGATIVE)], first[1]
        for key, _ in drafted:
            score = jnp.einsum("btgrd,btgd->bgrt", q, key).astype(jnp.float32)
            scores.append(score[..., None])
        p = jax.nn.softmax(jnp.concatenate(scores, -1), -1).astype(v.dtype)
        out = jnp.einsum("bgrts,bsgd->btgrd", p[..., : 2 * length], values)
        for j, (_, value) in enumerate(drafted):
            share = jnp.moveaxis(p[..., 2 * length + j], -1, 1)  # [B, T, G, R]
            out = out + share[..., None] * value[:, :, :, None]
        out = product(out.reshape(batch, length, -1), layer["out"])
        outputs.append(decoder_layer.feed_forward(layer, c, g + out))
        if detach:
            first, drafted = lax.stop_gradient((first, drafted))
        if i + 1 < steps:
            following = choose(i, outputs[-1])[:, :, None]
            three = jnp.concatenate([three[:, :, 1:], following], 2)
    return outputs


def block(params: Params, target, cache, x: Array, nodes) -> tuple:
    """Run the layer over h and g, as x [B, N, D]; their keys go to the cache."""
    layer = params["layer"]
    c = decoder_layer.of(layer, target)
    inside = decoder_layer.rms(x, layer["input_norm"], c.norm_eps)
    return decoder_layer.block(layer, c, cache, inside, x, nodes)


def check(params: Params, target) -> None:
    vocab, width = params["head"].shape[1:]
    decoder_layer.check("Chimera", target, width // 2, vocab)
