"""Operations over the vocabulary: reductions, masks, noise and draws.

This is the dense form: plain arrays whose *last* axis is `V`. Methods call these and
never sort, reduce or gather over `V` themselves. So a sharded form or a kernel form can
take this module's place (a sort over a sharded vocabulary would gather it).

Logits are float32[..., V], not necessarily normalised; a forbidden token is `-inf`.
Every function assumes that one token at least is finite, and keeps it so.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array, lax

from kernels import block_traffic, one_buffer
from models.base import pack_bits
from models.distributed import sharding

GROUP = 64  # tokens in a group of `top_k`, at most
LOST = -1e4  # of allowed tokens that had been forbidden: they have no mass


def maximum(logits: Array) -> Array:
    """Return the greatest value, [...]."""
    return logits.max(-1)


def argmax(logits: Array) -> Array:
    """Return the best token, int32[...]; of equals, the one of lowest id."""
    return one_buffer.argmax(logits)


def logsumexp(logits: Array) -> Array:
    """Return the log of the normaliser, float32[...]."""
    return jax.nn.logsumexp(logits.astype(jnp.float32), -1)


def log_softmax(logits: Array) -> Array:
    """Return log-probabilities float32[..., V]; `-inf` stays `-inf`."""
    return jax.nn.log_softmax(logits.astype(jnp.float32), -1)


def softmax(logits: Array) -> Array:
    """Return probabilities float32[..., V]; 0 where the logit is `-inf`."""
    return jax.nn.softmax(logits.astype(jnp.float32), -1)


def at(values: Array, token: Array) -> Array:
    """Gather the entry of `token` int32[...] from `values` [..., V]."""
    return jnp.take_along_axis(values, token[..., None], -1)[..., 0]


def gather(values: Array, tokens: Array) -> Array:
    """Gather the entries [..., M] of `tokens` int32[..., M] from `values` [..., V]."""
    return jnp.take_along_axis(values, tokens, -1)


def token_logprob(logits: Array, token: Array) -> Array:
    """Return the log-probability float32[...] of `token` int32[...]."""
    return at(logits.astype(jnp.float32), token) - logsumexp(logits)


def entropy(logits: Array) -> Array:
    """Return the entropy in nats, float32[...]; forbidden tokens contribute 0."""
    logp = log_softmax(logits)
    p = jnp.exp(logp)
    return -jnp.where(p > 0, p * logp, 0.0).sum(-1)


def deviation(logits: Array) -> Array:
    """Return the standard deviation of the allowed tokens' logits, float32[...]."""
    finite = logits > -jnp.inf
    count = finite.sum(-1)
    mean = jnp.where(finite, logits, 0.0).sum(-1) / count
    gap = jnp.where(finite, logits - mean[..., None], 0.0)
    return jnp.sqrt((gap * gap).sum(-1) / count)


def top_k(logits: Array, k: int) -> tuple[Array, Array]:
    """Return the `k` best values [..., k] and tokens int32[..., k]; ties by lowest id.

    The CPU compiler sorts the whole row for `lax.top_k`. So only the `k` groups with
    the greatest maxima are sorted: any other token ranks below the best of each of
    these groups. The shards of a sharded vocabulary are whole numbers of groups.
    Devices therefore exchange only the maxima and the `k` groups.
    """
    size = logits.shape[-1]
    best_of = few_best if block_traffic.platform() == "tpu" else _sorted_best
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
    """Compute `lax.top_k` by `k` arg-maxes: the TPU compiler is slow at sorts.

    The scan reads `values` from one buffer, so that each maximum is attained. `k` = 1
    takes another path: the compiler unrolls a scan of one step and may then evaluate
    `values` twice.
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

    A row that would have no finite token left is returned unchanged: a law needs a
    support, and NaN later hides the cause.
    """
    masked = jnp.where(mask, logits, -jnp.inf)
    return jnp.where(maximum(masked)[..., None] > -jnp.inf, masked, logits)


def best_of_groups_mask(logits: Array, groups: Array) -> Array:
    """Return the tokens that are the best of their group, bool[V].

    Args:
        logits: float32[V].
        groups: int32[V], the group of every token, in [0, V).
    """
    size = logits.shape[-1]
    return one_buffer.two_passes(
        logits,
        lambda logits: jax.ops.segment_max(logits, groups, size),
        lambda logits, best: logits >= best[groups],
    )[1]


def _image(values: Array) -> Array:
    """Map float32 to uint32 in the order of the floats; zeros are equal."""
    values = values.astype(jnp.float32)
    bits = lax.bitcast_convert_type(jnp.where(values == 0, 0.0, values), jnp.uint32)
    top = jnp.uint32(1 << 31)
    return jnp.where(bits >= top, ~bits, bits | top)


def _best_set(values: Array, holds: Callable[[Array], Array]) -> Array:
    """Return the smallest set `values >= t` that `holds`, bool[..., V].

    If none holds, every token is in it. `holds` maps bool[..., V] to bool[...] and must
    be monotone: if it is true of a set, it is true of its supersets. Each step fixes
    one bit of the integer image of `t`, so 32 steps are exact: `t` is one of `values`.
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
    """Return the `k` best tokens and every token tied with the k-th, bool[..., V].

    `k` may be traced; a `k` beyond the vocabulary gives every token.
    """
    k = jnp.minimum(k, logits.shape[-1])
    return _best_set(logits, lambda subset: subset.sum(-1) >= k)


def mass_mask(values: Array, weights: Array, mass: Array | float) -> Array:
    """Return the smallest set of best `values` whose `weights` sum to `mass`.

    The set is bool[..., V] and holds all ties of its least member. A sum in a fixed
    order of rounded additions is monotone in each term, so the bisection is exact for
    the sums as computed. `mass` >= 1, or a total that rounding left short of it, gives
    every token.
    """
    weights = weights.astype(jnp.float32)
    # A mass that float32 rounds to 0 must still keep one token.
    least = jnp.maximum(mass, jnp.finfo(jnp.float32).tiny)
    chosen = _best_set(
        values, lambda subset: jnp.where(subset, weights, 0.0).sum(-1) >= least
    )
    return chosen | (jnp.asarray(mass)[..., None] >= 1)


def top_p_mask(logits: Array, p: Array | float) -> Array:
    """Return the nucleus of mass `p`, ties included, bool[..., V].

    A token is kept if the tokens strictly above it have a mass below `p`.
    """
    return mass_mask(logits, softmax(logits), p)


def near_best_mask(values: Array, bar: Callable[[Array], Array]) -> Array:
    """Return `values` >= `bar(best)`, bool[..., V]; `best` [...] is the maximum."""
    return one_buffer.two_passes(
        values, maximum, lambda values, best: values >= bar(best)[..., None]
    )[1]


def gumbel(key: Array, shape: tuple[int, ...]) -> Array:
    """Draw standard Gumbel noise float32[shape], finite everywhere."""
    return jax.random.gumbel(key, shape, jnp.float32)


def gumbel_argmax(logits: Array, noise: Array) -> Array:
    """Draw from softmax(logits), int32[...], as a function of `noise` [..., V]."""
    return argmax(logits.astype(jnp.float32) + noise)


def sample(key: Array, logits: Array) -> Array:
    """Draw from softmax(logits), int32[...]."""
    return gumbel_argmax(logits, gumbel(key, logits.shape))


def residual(p_logits: Array, q_logits: Array) -> Array:
    """Return log norm((p - q)+), the residual of p after a rejected q, float32[..., V].

    If p <= q everywhere, then p = q up to rounding. The rejection had probability 0 up
    to rounding, and the residual is p itself.
    """
    p, q = softmax(p_logits), softmax(q_logits)
    rest = jnp.maximum(p - q, 0.0)
    total = rest.sum(-1, keepdims=True)
    scaled = rest / jnp.where(total > 0, total, 1.0)
    return jnp.log(jnp.where(total > 0, scaled, p))


def token_set(tokens: Array, mask: Array, vocab_size: int) -> Array:
    """Pack the set of `tokens` int32[T] where `mask` bool[T] into uint32[ceil(V / 32)].

    A tree keeps one set for each node; packed, there is 32 times less to copy.
    """
    seen = jnp.zeros((vocab_size,), bool)
    return pack_bits(
        seen.at[jnp.where(mask, tokens, vocab_size)].set(True, mode="drop")
    )


def insert(bits: Array, token: Array) -> Array:
    """Add `token` int32[] to the packed set `bits` uint32[W]."""
    word = token >> 5
    bit = jnp.uint32(1) << (token & 31).astype(jnp.uint32)
    return bits.at[word].set(bits[word] | bit, mode="drop")


def restricted(logits: Array, allowed: Array) -> Array:
    """Forbid the tokens that are not `allowed` bool[..., V], of which one is.

    If all that are had been forbidden before, they become equally likely.
    """
    masked = jnp.where(allowed, logits, -jnp.inf)
    forced = jnp.where(allowed, LOST, -jnp.inf)
    return jnp.where(maximum(masked)[..., None] > -jnp.inf, masked, forced)


def members(bits: Array, vocab_size: int) -> Array:
    """Unpack `bits` uint32[W] into the set bool[V]."""
    spread = (bits[:, None] >> jnp.arange(32, dtype=jnp.uint32)) & 1
    return spread.reshape(-1)[:vocab_size] == 1
