"""Expected attention: keep what queries of the future will attend to, on average.

Devoto, Jeblick, Jégou, *Expected Attention: KV Cache Compression by Estimating
Attention from Future Queries Distribution*, 2025, arXiv 2510.00636, section 3. With
mean mu and covariance S of a head's queries of the prompt before rotation, and R the
mean rotation of the next `future` positions,

    log a_j = k_j R mu / sqrt(d) + k_j R S R^T k_j / (2 d)
    value of slot j: softmax_j(log a)_j |v_j|, averaged over the heads of the group

The first `sinks` tokens stay, and their queries do not count. Slots are evicted once,
when the prompt is read; what follows it stays.

Deviations: none from the authors' kvpress at its defaults. Moments are summed every
`prompt_every` tokens, so that no query is kept longer. Cost: one read of keys and
values, once; d (d + 1) numbers a query head.
"""

import jax
import jax.numpy as jnp

from decoding import base
from decoding.cache_eviction import budgets, scored
from decoding.catalogue import Card
from models.cache_layouts import held
from models.errors import MethodError
from models.transformer.modules import rotate, rotations

CARD = Card(
    paper="arXiv 2510.00636",
    guarantee=base.LOSSY,
    family="eviction",
    needs=("model",),
    sources=("devoto2025expected",),
    examples={"budget": 12, "sinks": 2, "future": 16, "prompt_every": 16},
)


def policy(
    model,
    budget: budgets.Budget = 0.5,
    future: int = 512,
    sinks: int = 4,
    covariance: bool = True,
    value_norm: bool = True,
    layers: budgets.Layers = budgets.UNIFORM,
    prompt_every: int = 128,
) -> base.CachePolicy:
    """Evict once, by the attention that is expected.

    Args:
        model: the target's functions.
        budget: slots of a KV head, or a share of the prompt.
        future: positions behind the prompt that queries are expected at.
        sinks: first tokens that stay.
        covariance: whether the queries' covariance counts.
        value_norm: whether the values' norms count.
        layers: "uniform", "pyramid", or each layer's weight.
        prompt_every: tokens of the prompt between sums of moments.

    Raises:
        MethodError: a number out of range.
    """
    if future < 1 or sinks < 0:
        raise MethodError(f"future={future}, sinks={sinks}: use at least 1 and 0")
    config = model.config
    groups, dim = held.full_heads(config)
    copies = config.n_heads // groups

    def turn(layer, about, at):
        """Return cos and sin float32[B, M, r / 2] of positions int32[B, M], or None."""
        which = config.rope(about.layer)
        if not config.ropes or which < 0:
            return None
        cos, sin = rotations(config, at, layer.size)[which]
        return cos, sin, config.ropes[which].scale

    def fold(layer, about):
        q, tokens = layer.asked(about.length)
        q = q.astype(jnp.float32)
        turned = turn(layer, about, -jnp.maximum(tokens, 0))
        if turned is not None:
            cos, sin, scale = turned
            back = 1 / scale**2  # cos and sin have the factor, and so have the queries
            q = rotate(q, cos[:, :, None] * back, sin[:, :, None] * back)
        q = q.reshape(*q.shape[:2], -1, copies, dim)
        counts = (tokens >= sinks)[:, :, None, None, None]
        q = jnp.where(counts, q, 0.0)
        extra = dict(layer.extra)
        number = (tokens >= sinks).sum(1).astype(jnp.float32)
        extra["count"] += number[:, None]
        extra["sum"] += q.sum(1)
        if covariance:
            extra["square"] += jnp.einsum("bmgri,bmgrj->bgrij", q, q)
        return layer.replace(extra=extra)

    def value(layer, about):
        held = layer.tokens(about.length)
        k, v = (x.astype(jnp.float32) for x in layer.store.read())
        count = jnp.maximum(layer.extra["count"], 1.0)[..., None, None]
        mean = layer.extra["sum"] / count
        turned = turn(layer, about, _ahead(about.length, future))
        around = lambda x: x
        if turned is not None:
            # Before rotation queries have no factor; at a position they have it.
            cos, sin = (x.mean(1)[:, None, None] for x in turned[:2])
            around = lambda x: rotate(x, cos, sin)
        expected = jnp.einsum("bgri,bgsi->bgrs", around(mean), k)
        if covariance:
            spread = layer.extra["square"] / count[..., None]
            spread = spread - mean[..., :, None] * mean[..., None, :]
            cut = lambda x: jnp.swapaxes(x, -1, -2)
            if turned is not None:
                cos, sin = cos[..., None, :], sin[..., None, :]
                spread = cut(rotate(cut(rotate(spread, cos, sin)), cos, sin))
            expected += jnp.einsum("bgrij,bgsi,bgsj->bgrs", spread, k, k) / 2
        seen = (held >= sinks)[:, :, None]
        expected = jnp.where(seen, expected, -jnp.inf)
        share = jnp.where(seen, jax.nn.softmax(expected, axis=-1), 0.0).mean(2)
        if value_norm:
            share = share * jnp.linalg.norm(v, axis=-1)
        newest = about.length[:, None, None] - 1
        return jnp.where((held < sinks) | (held == newest), jnp.inf, share), layer

    extra = {"count": (jnp.float32, ()), "sum": (jnp.float32, (copies, dim))}
    if covariance:
        extra["square"] = (jnp.float32, (copies, dim, dim))
    rule = scored.Rule(value, scored.ALL, extra=extra, fold=fold)
    return scored.policy(rule, budget, layers=layers, prompt_every=prompt_every)


def _ahead(length, future: int):
    """Return int32[B, future]: the positions behind the prompt."""
    return length[:, None] + jnp.arange(future, dtype=jnp.int32)
