"""Closed forms in float64, and simulations of one verified node beside them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from decoding import base
from decoding.tree_building import child_sampling

# The laws of the worked example, and what it gives: acceptance of k siblings.
P = np.array([0.5, 0.3, 0.15, 0.05])
Q = np.array([0.1, 0.2, 0.3, 0.4])
GOLDEN = {
    base.IID: (0.5, 0.65, 0.685),
    base.NO_REPLACE: (0.5, 0.6797619048, 0.7809047619),
}


def recursive(p: np.ndarray, q: np.ndarray, k: int, draw: str):
    """Law float64[V] of the token, and acceptance of each of `k` siblings, enumerated.

    `draw` IID or NO_REPLACE, drawn from `q`; one sibling is plain rejection sampling.
    """
    law, accepted = np.zeros_like(p), np.zeros(k)

    def visit(i: int, left: np.ndarray, drawn: np.ndarray | None, weight: float):
        if i == k or drawn is None:
            law[:] += weight * left
            return
        rest = np.maximum(left - drawn, 0)
        rest = rest / rest.sum() if rest.sum() > 0 else left
        for x in np.flatnonzero(drawn):
            chance = min(1.0, left[x] / drawn[x])
            law[x] += weight * drawn[x] * chance
            accepted[i] += weight * drawn[x] * chance
            after = drawn
            if draw == base.NO_REPLACE:
                after = np.where(np.arange(len(p)) == x, 0, drawn)
                after = after / after.sum() if after.sum() > 0 else None
            visit(i + 1, rest, after, weight * drawn[x] * (1 - chance))

    visit(0, p, q, 1.0)
    return law, accepted


def kseq(p: np.ndarray, q: np.ndarray, k: int) -> tuple[float, float, np.ndarray]:
    """K-SEQ's division factor, its acceptance, and the law float64[V] of its token."""

    def accept(rho: float) -> tuple[float, float]:
        beta = float(np.minimum(q, p / rho).sum())
        return 1 - (1 - beta) ** k, beta

    low, rho = 1.0, float(k)
    for _ in range(200):
        middle = (low + rho) / 2
        chance, beta = accept(middle)
        low, rho = (middle, rho) if chance > middle * beta else (low, middle)
    chance, beta = accept(rho)
    taken = np.minimum(q, p / rho) * (chance / beta if beta else k)
    rest = np.maximum(p - taken, 0)
    rest = rest / rest.sum() if rest.sum() > 1e-12 else p
    return rho, chance, taken + (1 - chance) * rest


def siblings(tokens, draw: str, logits) -> base.TokenTree:
    """★ A root with children `tokens` int32[k], drawn from `logits` float32[V]."""
    k = tokens.shape[0]
    zero = jnp.zeros((1,), jnp.int32)
    return base.TokenTree(
        jnp.concatenate([zero, tokens.astype(jnp.int32)]),
        jnp.concatenate([zero - 1, jnp.zeros((k,), jnp.int32)]),
        jnp.full((k + 1,), base.CANDIDATE, jnp.int32),
        jnp.broadcast_to(logits, (k + 1, logits.shape[0])),
        draw=draw,
        depth=1,
        linear=k == 1,
    )


def target(p, nodes: int, noise=None) -> base.Target:
    """★ The same law `p` at every node."""
    logits = jnp.log(jnp.asarray(p, jnp.float32))
    return base.Target(jnp.broadcast_to(logits, (nodes, len(p))), {}, noise)


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _simulate(verify, draw, k, n, p, q, seed, state):
    logits = jnp.log(q)

    def one(key):
        keys = jax.random.split(key, 3)
        noise = jax.random.gumbel(keys[2], p.shape)
        rows = (keys[:1], logits[None, None], k, noise[None])
        drawn = child_sampling.candidates(draw, *rows)[0, 0]
        nodes = siblings(drawn, draw, logits)
        at = target(p, k + 1, lambda depth: noise)
        verdict = verify(keys[1], state, nodes, at)
        first = jnp.where(verdict.count > 0, nodes.tokens[verdict.path[0]], -1)
        return jnp.where(verdict.count > 0, first, verdict.token), verdict.path[0]

    return jax.vmap(one)(jax.random.split(jax.random.key(seed), n))


def simulate(verifier: base.Verifier, draw: str, k: int, n: int, seed: int = 0):
    """Counts [V] of the first token, and [k] of the sibling accepted, in `n` rounds."""
    p, q = jnp.asarray(P, jnp.float32), jnp.asarray(Q, jnp.float32)
    state = verifier.init({})
    token, node = _simulate(verifier.verify, draw, k, n, p, q, seed, state)
    tokens = np.bincount(np.asarray(token), minlength=len(P))
    ranks = np.bincount(np.asarray(node), minlength=k + 1)
    return tokens, ranks[1:]


def within(count: int, n: int, chance: float, errors: float = 4.0) -> bool:
    """Whether `count` of `n` is within `errors` standard errors of `chance`."""
    return abs(count / n - chance) <= errors * np.sqrt(chance * (1 - chance) / n)
