"""Everything over the vocabulary: reductions, masks, noise and draws.

This is the dense form: plain arrays whose *last* axis is `V`. Methods call these and
never sort, reduce or gather over `V` themselves, so that a sharded form and a kernel
form can take this module's place (a sort over a sharded vocabulary would gather it).

Logits are float32[..., V], not necessarily normalised; a forbidden token is `-inf`.
Every function assumes that one token at least is finite, and keeps it so.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array, lax

from kernels import one_buffer
from kernels import plan as planning
from models import sharding
from models.base import pack_bits

GROUP = 64  # tokens that `top_k` takes together, at most


def maximum(logits: Array) -> Array:
    """The greatest value, [...]."""
    return logits.max(-1)


def argmax(logits: Array) -> Array:
    """int32[...]: the best token; among equals, the one of lowest id."""
    return one_buffer.argmax(logits)


def logsumexp(logits: Array) -> Array:
    """float32[...]: the log of the normaliser."""
    return jax.nn.logsumexp(logits.astype(jnp.float32), -1)


def log_softmax(logits: Array) -> Array:
    """float32[..., V]: log-probabilities; `-inf` stays `-inf`."""
    return jax.nn.log_softmax(logits.astype(jnp.float32), -1)


def softmax(logits: Array) -> Array:
    """float32[..., V]: probabilities; 0 where the logit is `-inf`."""
    return jax.nn.softmax(logits.astype(jnp.float32), -1)


def at(values: Array, token: Array) -> Array:
    """The entry of `token` int32[...] in `values` [..., V]."""
    return jnp.take_along_axis(values, token[..., None], -1)[..., 0]


def gather(values: Array, tokens: Array) -> Array:
    """The entries [..., M] of `tokens` int32[..., M] in `values` [..., V]."""
    return jnp.take_along_axis(values, tokens, -1)


def token_logprob(logits: Array, token: Array) -> Array:
    """float32[...]: the log-probability of `token` int32[...]."""
    return at(logits.astype(jnp.float32), token) - logsumexp(logits)


def entropy(logits: Array) -> Array:
    """float32[...]: the entropy in nats; forbidden tokens contribute 0."""
    logp = log_softmax(logits)
    p = jnp.exp(logp)
    return -jnp.where(p > 0, p * logp, 0.0).sum(-1)


def top_k(logits: Array, k: int) -> tuple[Array, Array]:
    """The `k` best values [..., k] and tokens int32[..., k]; ties by lowest id.

    The CPU compiler sorts the whole row for it. So only the `k` groups with the
    greatest maxima are sorted: a token elsewhere comes after those of `k` other groups.
    Of a sharded vocabulary, whose pieces are whole numbers of groups, the maxima and
    the `k` groups are all that devices tell each other.
    """
    size = logits.shape[-1]
    best_of = few_best if planning.platform() == "tpu" else _sorted_best
    if size <= 2 * k * GROUP:
        return best_of(logits, k)
    pieces, group = sharding.pieces(size, "vocab"), GROUP
    if pieces > 1:
        group = next(g for g in range(GROUP, 0, -1) if size // pieces % g == 0)
    wider = [*[(0, 0)] * (logits.ndim - 1), (0, -size % group)]
    padded = jnp.pad(logits, wider, constant_values=-jnp.inf)
    groups = padded.reshape(*logits.shape[:-1], -1, group)
    beside = "* " * (logits.ndim - 1)
    groups = sharding.constrain(groups, beside + "vocab")
    peaks = sharding.constrain(groups.max(-1), beside + "-")
    best = jnp.sort(best_of(peaks, k)[1], -1)  # in order, for the ties
    few = jnp.take_along_axis(groups, best[..., None], -2)
    few = sharding.constrain(few, beside + "- -")
    values, at = best_of(few.reshape(*logits.shape[:-1], k * group), k)
    tokens = jnp.take_along_axis(best, at // group, -1) * group + at % group
    return values, tokens


def _sorted_best(values: Array, k: int) -> tuple[Array, Array]:
    best, index = lax.top_k(values, k)
    return best, index.astype(jnp.int32)


def few_best(values: Array, k: int) -> tuple[Array, Array]:
    """What `lax.top_k` gives, by `k` arg-maxes: the TPU compiler is slow at sorts.

    The scan reads `values` from one buffer, so that each maximum is attained. A scan of
    one turn is no loop to the compiler, which may evaluate `values` twice.
    """
    if k == 1:
        token = argmax(values)[..., None]
        return gather(values, token), token
    size = values.shape[-1]
    index = jnp.arange(size, dtype=jnp.int32)

    def next_best(taken: Array, _: None) -> tuple[Array, tuple[Array, Array]]:
        top = maximum(jnp.where(taken, -jnp.inf, values))
        left = (values == top[..., None]) & ~taken
        token = jnp.minimum(jnp.where(left, index, size).min(-1), size - 1)
        return taken | (index == token[..., None]), (top, token)

    none = jnp.zeros(values.shape, bool)
    _, (tops, tokens) = lax.scan(next_best, none, None, length=k)
    return jnp.moveaxis(tops, 0, -1), jnp.moveaxis(tokens, 0, -1)


def keep(logits: Array, mask: Array) -> Array:
    """Forbid the tokens outside `mask` bool[..., V].

    Where that would leave no finite token the row comes back as it was: a law needs a
    support, and NaN later tells nobody why.
    """
    kept = jnp.where(mask, logits, -jnp.inf)
    return jnp.where(maximum(kept)[..., None] > -jnp.inf, kept, logits)


def _image(values: Array) -> Array:
    """uint32 image of float32 that orders as the floats do; zeros are equal."""
    values = values.astype(jnp.float32)
    bits = lax.bitcast_convert_type(jnp.where(values == 0, 0.0, values), jnp.uint32)
    top = jnp.uint32(1 << 31)
    return jnp.where(bits >= top, ~bits, bits | top)


def _best_set(values: Array, holds: Callable[[Array], Array]) -> Array:
    """bool[..., V]: the smallest set `values >= t` that `holds`; all if none does.

    `holds` maps bool[..., V] to bool[...] and must be monotone: true of a set, true of
    its supersets. One bit of the integer image of `t` is settled a step, so that 32
    steps are exact: `t` is one of `values`.
    """

    def threshold(image: Array) -> Array:
        def settle(i: Array, t: Array) -> Array:
            probe = t | (jnp.uint32(1) << (31 - i).astype(jnp.uint32))
            return jnp.where(holds(image >= probe[..., None]), probe, t)

        return lax.fori_loop(0, 32, settle, jnp.zeros_like(image[..., 0]))

    return one_buffer.two_passes(
        _image(values), threshold, lambda image, t: image >= t[..., None]
    )[1]


def top_k_mask(logits: Array, k: Array | int) -> Array:
    """bool[..., V]: the `k` best tokens and every token tied with the k-th.

    `k` may be traced; k beyond the vocabulary is everything.
    """
    k = jnp.minimum(k, logits.shape[-1])
    return _best_set(logits, lambda kept: kept.sum(-1) >= k)


def mass_mask(values: Array, weights: Array, mass: Array | float) -> Array:
    """bool[..., V]: the smallest set of best `values` whose `weights` sum to `mass`.

    All ties of its least member are in it. A sum in a fixed order of rounded additions
    is monotone in each term, so the bisection is exact for the sums as computed. `mass`
    >= 1, or a total that rounding left short of it, gives everything.
    """
    weights = weights.astype(jnp.float32)
    # A mass that float32 rounds to 0 must still ask for one token.
    asked = jnp.maximum(mass, jnp.finfo(jnp.float32).tiny)
    found = _best_set(
        values, lambda kept: jnp.where(kept, weights, 0.0).sum(-1) >= asked
    )
    return found | (jnp.asarray(mass)[..., None] >= 1)


def top_p_mask(logits: Array, p: Array | float) -> Array:
    """bool[..., V]: the nucleus of mass `p`, ties included.

    A token is kept when the tokens strictly above it weigh less than `p`.
    """
    return mass_mask(logits, softmax(logits), p)


def near_best_mask(values: Array, bar: Callable[[Array], Array]) -> Array:
    """bool[..., V]: `values` >= `bar(best)`, where `best` [...] is the greatest."""
    return one_buffer.two_passes(
        values, maximum, lambda values, best: values >= bar(best)[..., None]
    )[1]


def gumbel(key: Array, shape: tuple[int, ...]) -> Array:
    """float32[shape]: standard Gumbel noise, finite everywhere."""
    return jax.random.gumbel(key, shape, jnp.float32)


def gumbel_argmax(logits: Array, noise: Array) -> Array:
    """int32[...]: a draw from softmax(logits), the function of `noise` [..., V]."""
    return argmax(logits.astype(jnp.float32) + noise)


def sample(key: Array, logits: Array) -> Array:
    """int32[...]: a draw from softmax(logits)."""
    return gumbel_argmax(logits, gumbel(key, logits.shape))


def residual(p_logits: Array, q_logits: Array) -> Array:
    """float32[..., V]: log of norm((p - q)+), what is left of p after a rejected q.

    Where p <= q everywhere, that is p = q up to rounding, the rejection that led here
    had probability 0 up to rounding, and the residual is p itself.
    """
    p, q = softmax(p_logits), softmax(q_logits)
    rest = jnp.maximum(p - q, 0.0)
    total = rest.sum(-1, keepdims=True)
    scaled = rest / jnp.where(total > 0, total, 1.0)
    return jnp.log(jnp.where(total > 0, scaled, p))


def token_set(tokens: Array, mask: Array, vocab_size: int) -> Array:
    """uint32[ceil(V / 32)]: the set of `tokens` int32[T] where `mask` bool[T].

    Packed, because a tree keeps one for each of its nodes: 32 times less to copy.
    """
    seen = jnp.zeros((vocab_size,), bool)
    return pack_bits(
        seen.at[jnp.where(mask, tokens, vocab_size)].set(True, mode="drop")
    )


def insert(bits: Array, token: Array) -> Array:
    """`bits` uint32[W] with `token` int32[] added."""
    word = token >> 5
    bit = jnp.uint32(1) << (token & 31).astype(jnp.uint32)
    return bits.at[word].set(bits[word] | bit, mode="drop")


def members(bits: Array, vocab_size: int) -> Array:
    """bool[V]: the set that `bits` uint32[W] holds."""
    spread = (bits[:, None] >> jnp.arange(32, dtype=jnp.uint32)) & 1
    return spread.reshape(-1)[:vocab_size] == 1
