"""The reference of `verify`, `residual` and `thresholds`, in plain jnp.

It is also the form for back ends without a kernel. Its results equal those of
`decoding/vocab.py` on the same logits: the same operations on the same floats.
"""

import jax
import jax.numpy as jnp
from jax import Array, lax

from kernels import one_buffer
from kernels.verify.law_statistics import Facts, Rest


def verify(
    logits: Array, temperature: Array, tokens: Array, noise: Array | None
) -> Facts:
    """Compute `Facts`; tokens outside the vocabulary score -inf.

    `logits` [B, N, V]; `temperature` float32[B, N]; `tokens` int32[B, N, M]; `noise`
    float32[B, N, V] or None.
    """
    token_scores = scores(logits, temperature, tokens)
    logits = logits.astype(jnp.float32)
    scaled = logits / temperature[..., None]
    best, top = _best(logits)
    drawn, race = _best(scaled if noise is None else scaled + noise)
    return Facts(best, top, jax.nn.logsumexp(scaled, -1), token_scores, drawn, race)


def scores(logits: Array, temperature: Array, tokens: Array) -> Array:
    """Return logit / temperature of `tokens`, float32[B, N, M]; -inf for other ids."""
    size = logits.shape[-1]
    there = (tokens >= 0) & (tokens < size)
    picked = jnp.take_along_axis(logits, jnp.clip(tokens, 0, size - 1), -1)
    picked = picked.astype(jnp.float32) / temperature[..., None]
    return jnp.where(there, picked, -jnp.inf)


def residual(
    p_logits: Array, q_logits: Array, p_lse: Array, q_lse: Array, noise: Array
) -> Rest:
    """Compute `Rest` from laws [B, N, V] as logits, with their log-sum-exp [B, N].

    `noise` is float32[B, N, V].
    """
    p = p_logits.astype(jnp.float32) - p_lse[..., None]
    q = q_logits.astype(jnp.float32) - q_lse[..., None]
    rest = jnp.maximum(jnp.exp(p) - jnp.exp(q), 0.0)
    drawn, race = _best(jnp.log(rest) + noise)
    spare, spare_race = _best(p + noise)
    return Rest(drawn, race, rest.sum(-1), spare, spare_race)


def thresholds(logits: Array, k: Array, mass: Array) -> tuple[Array, Array]:
    """Return the k-th greatest value, and the least value of the top-k's nucleus.

    `k` int32[B, N], `mass` float32[B, N]; `-inf` where `mass` is 1 or more.
    """
    logits = logits.astype(jnp.float32)
    image = ordered(logits)
    k = jnp.clip(k, 1, logits.shape[-1])

    def kth(image: Array) -> Array:
        return settle(lambda t: (image >= t[..., None]).sum(-1) >= k, k.shape)

    first, alive = one_buffer.two_passes(
        image, kth, lambda image, t: image >= t[..., None]
    )
    weights = jnp.exp(logits - logits.max(-1, keepdims=True))
    weights = jnp.where(alive, weights, 0.0)
    required = jnp.maximum(mass, jnp.finfo(jnp.float32).tiny) * weights.sum(-1)

    def holds(t: Array) -> Array:
        return jnp.where(image >= t[..., None], weights, 0.0).sum(-1) >= required

    second = jnp.where(mass < 1, value(settle(holds, k.shape)), -jnp.inf)
    return value(first), second


def ordered(values: Array) -> Array:
    """Map float32 to an int32 image of the same order; zeros are equal."""
    bits = lax.bitcast_convert_type(jnp.where(values == 0, 0.0, values), jnp.int32)
    return jnp.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


def value(image: Array) -> Array:
    """Invert `ordered`; the image of no float gives -inf."""
    bits = jnp.where(image < 0, image ^ 0x7FFFFFFF, image)
    floats = lax.bitcast_convert_type(bits, jnp.float32)
    return jnp.where(jnp.isnan(floats), -jnp.inf, floats)


def settle(holds, shape: tuple[int, ...]) -> Array:
    """Find the greatest image `t` for which `holds(t)`: one bit a step, 32 steps.

    `holds` must be monotone: true of a threshold, true of every lower one.
    """
    lowest = jnp.full(shape, jnp.iinfo(jnp.int32).min, jnp.int32)

    def step(i: Array, t: Array) -> Array:
        # The sign bit first: in the image, flipping it adds 2^31.
        probe = t ^ lax.shift_left(jnp.int32(1), jnp.int32(31) - i)
        return jnp.where(holds(probe), probe, t)

    return lax.fori_loop(0, 32, step, lowest)


def _best(values: Array) -> tuple[Array, Array]:
    """Return the first index of the greatest value, and the value."""
    return one_buffer.argmax(values), values.max(-1)
