"""Losses between a teacher's distribution and a draft's, per position, in float32 nats.

`teacher`, `draft` are logits [..., V]; every function returns float32[...]. With p the
teacher's distribution, q the draft's, alpha = sum min(p, q) the acceptance rate:

    soft_ce    -sum p log q                     kl   sum p (log p - log q)
    reverse_kl  sum q (log q - log p)           tv   sum |p - q| / 2 = 1 - alpha
    jsd(b)      b KL(p || m) + (1 - b) KL(q || m),  m = b p + (1 - b) q
    nla        -log alpha
    hybrid      w kl + (1 - w) tv,  w = c exp(-eta stop(alpha))
    tvdpp      -sum stop(q A) log q,  A = (1[p > q] - mean) / deviation

`tvdpp` is TVD++ (Goel et al., *Direct Alignment of Draft Model for Speculative Decoding
with Chat-Fine-Tuned LLMs*, 2024, arXiv 2403.00858): without normalising, the gradient
of that surrogate is that of tv.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array, lax

from models.errors import ConfigError

AXES = ("batch", "position")


def _laws(teacher: Array, draft: Array) -> tuple[Array, Array, Array, Array]:
    """Compute log p, log q, p, q in float32."""
    logp = jax.nn.log_softmax(teacher.astype(jnp.float32), -1)
    logq = jax.nn.log_softmax(draft.astype(jnp.float32), -1)
    return logp, logq, jnp.exp(logp), jnp.exp(logq)


def _times(p: Array, log: Array) -> Array:
    """Multiply p by log, 0 where p is 0; NaN in p stays NaN, so that it shows."""
    return jnp.where(p == 0, 0.0, p * jnp.where(p == 0, 0.0, log))


def ce(draft: Array, label: Array) -> Array:
    """Compute -log q(label), for `draft` [..., V] and `label` int[...]."""
    logq = jax.nn.log_softmax(draft.astype(jnp.float32), -1)
    return -jnp.take_along_axis(logq, label[..., None], -1)[..., 0]


def soft_ce(teacher: Array, draft: Array) -> Array:
    _, logq, p, _ = _laws(teacher, draft)
    return -_times(p, logq).sum(-1)


def kl(teacher: Array, draft: Array) -> Array:
    logp, logq, p, _ = _laws(teacher, draft)
    return _times(p, logp - logq).sum(-1)


def reverse_kl(teacher: Array, draft: Array) -> Array:
    logp, logq, _, q = _laws(teacher, draft)
    return _times(q, logq - logp).sum(-1)


def jsd(teacher: Array, draft: Array, beta: float = 0.9) -> Array:
    """Compute the generalised Jensen-Shannon divergence; beta is Online SD's."""
    logp, logq, p, q = _laws(teacher, draft)
    m = jnp.log(beta * p + (1 - beta) * q)
    ours, theirs = _times(p, logp - m).sum(-1), _times(q, logq - m).sum(-1)
    return beta * ours + (1 - beta) * theirs


def alpha(teacher: Array, draft: Array, mass: Array | float = 1.0) -> Array:
    """Compute sum min(p, q), the acceptance rate of a draft.

    `mass` float32[...] is the teacher's probability of these tokens, where there are
    others that the draft never guesses.
    """
    _, _, p, q = _laws(teacher, draft)
    return jnp.minimum(jnp.asarray(mass)[..., None] * p, q).sum(-1)


def tv(teacher: Array, draft: Array) -> Array:
    return 1.0 - alpha(teacher, draft)


def nla(teacher: Array, draft: Array) -> Array:
    return -jnp.log(jnp.maximum(alpha(teacher, draft), 1e-20))


def hybrid(teacher: Array, draft: Array, c: float = 1.0, eta: float = 3.0) -> Array:
    accepted = alpha(teacher, draft)
    weight = c * jnp.exp(-eta * lax.stop_gradient(accepted))
    return weight * kl(teacher, draft) + (1 - weight) * (1 - accepted)


def tvdpp(
    teacher: Array, draft: Array, weights: Array | None = None, axis: str = "batch"
) -> Array:
    """Compute the surrogate, of which only the *gradient* is meaningful.

    Args:
        teacher: logits [..., V].
        draft: logits [..., V].
        weights: float32[...], of positions in the statistics; None: all alike.
        axis: "batch": mean and deviation over q and positions; "position": over q.
    """
    if axis not in AXES:
        raise ConfigError(f"axis={axis!r}: use one of {AXES}")
    _, logq, p, q = _laws(teacher, draft)
    reward = jnp.where(jnp.isnan(p), p, (p > q).astype(jnp.float32))
    weight = lax.stop_gradient(q)

    def pooled(x: Array) -> Array:
        if axis == "position":
            return x
        if weights is None:
            return x.mean()
        return (x[..., 0] * weights).sum() / jnp.maximum(weights.sum(), 1.0)

    first = pooled((weight * reward).sum(-1, keepdims=True))
    spread = pooled((weight * (reward - first) ** 2).sum(-1, keepdims=True))
    advantage = (reward - first) / jnp.maximum(jnp.sqrt(spread), 1e-6)
    return -(weight * lax.stop_gradient(advantage) * logq).sum(-1)


def smooth_l1(found: Array, wanted: Array) -> Array:
    """Compute the Huber loss of width 1 between states [..., D], mean over D."""
    error = jnp.abs(found.astype(jnp.float32) - wanted.astype(jnp.float32))
    return jnp.where(error < 1, 0.5 * error**2, error - 0.5).mean(-1)


LOSSES: dict[str, Callable[[Array, Array], Array]] = {
    "soft_ce": soft_ce,
    "kl": kl,
    "reverse_kl": reverse_kl,
    "jsd": jsd,
    "tv": tv,
    "nla": nla,
    "hybrid": hybrid,
    "tvdpp": tvdpp,
}


def by_name(name: str) -> Callable[[Array, Array], Array]:
    """Return a config's loss."""
    if name not in LOSSES:
        raise ConfigError(f"loss={name!r}: use one of {sorted(LOSSES)}")
    return LOSSES[name]
