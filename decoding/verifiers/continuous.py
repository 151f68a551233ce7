"""Continuous speculative decoding: accept a real-valued draft with min(1, p/q).

Wang, Zhang, Ding, Yang, Li, Xiang, *Continuous Speculative Decoding for Autoregressive
Image Generation*, 2024, arXiv 2411.11925. For drafts x_i ~ q_i in R^D
of a chain, with p_i and q_i normal laws of independent coordinates:

    accept x_i    if  u_i < p_i(x_i) / q_i(x_i),     u_i ~ U[0, 1)
    n           = number of drafts accepted before the first that is not
    next token    ~ (p_n - q_n)+ / Z if draft n + 1 was rejected, p_n if none was
    the residual  repeat y ~ p_n until  u < max(0, 1 - q_n(y) / p_n(y))

One draft is accepted with probability 1 - TV(p, q); the residual takes 1 / TV(p, q)
proposals on average, so a tested draft costs one of them, whatever the models are.

Trajectory alignment (`decoding/real_valued/loop.py`) is not this file's: where a token
comes from a chain of Gaussian steps, draft and target share the noise of all steps but
the last. Given that noise both laws of the last step are normal, and its own noise is
drawn afresh on each side. So p and q come near each other, and the law of the tokens is
the target's, whatever the draft does with the noise. The paper's factor Sigma for the
other steps' normalisers is 1 in this view.

Guarantee: LAW at `temperature` 1 with the `deviation` "true". LOSSY otherwise:

- `temperature` T divides the z-scores of the acceptance test, and of nothing else. At
  the authors' T = 42 almost every draft is accepted.
- `deviation="variance"` is the authors' released code: it takes the variance for the
  deviation, in the test, in the residual and in its proposals. Its factor Sigma then
  cancels the normalisers, so that only exp of the squared z-scores is compared. The
  residual may then be empty, where no proposal is ever taken: lossy forms try 100.

This is not a `base.Verifier`, which reads tokens of a vocabulary and rows of logits:
real-valued tokens have neither, so the rule is a pure function of Gaussians with an
interface (`decoding/real_valued/verifying.py`) and a small loop of their own. The token
loops do not know of it, and `generate` refuses it.

Deviations from the paper: ratios are differences of logarithms. The chain is cut at the
first rejection, where the code for MAR keeps later tokens of its random order. Behind
the last proposal that `limit` allows the last one is taken (the code leaves zeros); at
the default that changes the law by less than 1 / (e limit) = 4e-7 in total variation a
token, the precision of the densities themselves. Token pre-filling, the target's own
first tokens, is the prompt here.

Cost per call: D terms a draft, and `BLOCK` proposals at a time until all rows have one;
no model call.
"""

import jax
import jax.numpy as jnp
from jax import Array, lax

from decoding import base
from decoding.catalogue import Card
from decoding.real_valued.verifying import RealVerdict, RealVerifier
from models.errors import MethodError
from models.real_valued.gaussian_series import Gaussian

CARD = Card(
    paper="Continuous speculative decoding, arXiv 2411.11925",
    guarantee=base.LAW,
    family="real-valued tokens",
    sources=("wang2024continuous",),
    kind="real_verifier",
)
TRUE, VARIANCE = "true", "variance"  # what is taken for a law's deviation
LIMIT, LOSSY_LIMIT = 1 << 20, 100  # proposals of a rejected token
BLOCK = 32  # proposals of one step of the residual's loop


def real_verifier(
    temperature: float = 1.0, deviation: str = TRUE, limit: int | None = None
) -> RealVerifier:
    """Verify chains of real-valued drafts.

    Args:
        temperature: divides the z-scores of the acceptance test.
        deviation: "true", or "variance" as in the authors' code.
        limit: proposals for a rejected token, at most; whole blocks are tried. None:
            `LIMIT` where the law is exact, else the authors' `LOSSY_LIMIT`.
    """
    if not temperature > 0:
        raise MethodError(f"temperature={temperature}: use a number above 0")
    if deviation not in (TRUE, VARIANCE):
        raise MethodError(f"deviation={deviation!r}: use {TRUE!r} or {VARIANCE!r}")
    is_exact = temperature == 1 and deviation == TRUE
    most = (LIMIT if is_exact else LOSSY_LIMIT) if limit is None else limit
    if most < 1:
        raise MethodError(f"limit={limit}: allow at least one proposal")

    def verify(key: Array, drafts: Array, q: Gaussian, p: Gaussian) -> RealVerdict:
        if deviation == VARIANCE:
            q, p = (Gaussian(law.mean, law.deviation**2) for law in (q, p))
        size = drafts.shape[0]
        coins = jnp.log(jax.random.uniform(jax.random.fold_in(key, 0), (size,)))
        first = jax.tree.map(lambda x: x[:size], p)
        ratio = log_ratio(drafts, first, q, temperature, deviation == TRUE)
        count = jnp.cumprod(coins < ratio).sum().astype(jnp.int32)
        # Behind the last draft there is no q: p itself, which its one proposal has.
        padded = jax.tree.map(lambda x, y: jnp.concatenate([x, y[size:]]), q, p)
        here, drafted = (jax.tree.map(lambda x: x[count], law) for law in (p, padded))
        token, tries = residual(
            jax.random.fold_in(key, 1),
            here,
            lambda y: log_ratio(y, here, drafted, 1.0, deviation == TRUE),
            count == size,
            most,
        )
        return RealVerdict(count, token, tries)

    return RealVerifier(verify, base.LAW if is_exact else base.LOSSY)


def log_ratio(
    x: Array, p: Gaussian, q: Gaussian, temperature: float, normalised: bool
) -> Array:
    """Compute log p(x) / q(x), float32[...], from x and laws [..., D]."""
    score = lambda law: ((x - law.mean) / (law.deviation * temperature)) ** 2
    terms = 0.5 * (score(q) - score(p))
    if normalised:
        terms = terms + jnp.log(q.deviation) - jnp.log(p.deviation)
    return terms.sum(-1)


def residual(
    key: Array, p: Gaussian, ratio, is_free: Array, limit: int
) -> tuple[Array, Array]:
    """★ Draw from (p - q)+ by acceptance and rejection, or from p.

    Args:
        key: of this token.
        p: the law, [D].
        ratio: (y [M, D]) -> log p(y) / q(y), float32[M].
        is_free: bool[]: take the first proposal.
        limit: proposals at most.

    Returns:
        The token float32[D], and the number of proposals up to it, int32[].
    """

    def more(carry: tuple) -> Array:
        _, tries, done = carry
        return ~done & (tries < limit)

    def step(carry: tuple) -> tuple:
        _, tries, _ = carry
        keys = jax.random.split(jax.random.fold_in(key, tries))
        noise = jax.random.normal(keys[0], (BLOCK, *p.mean.shape))
        proposals = p.mean + p.deviation * noise
        coins = jax.random.uniform(keys[1], (BLOCK,))
        taken = is_free | (coins < -jnp.expm1(-ratio(proposals)))
        found = taken.any()
        at = jnp.where(found, jnp.argmax(taken), BLOCK - 1).astype(jnp.int32)
        return proposals[at], tries + at + 1, found

    start = (jnp.zeros_like(p.mean), jnp.int32(0), jnp.bool_(False))
    token, tries, _ = lax.while_loop(more, step, start)
    return token, tries
