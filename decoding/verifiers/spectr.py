"""K-SEQ: test the i.i.d. drafts of a node in turn, at a lowered acceptance probability.

Sun, Suresh, Ro, Beirami, Jain, Yu, *SpecTr: Fast Speculative Decoding via Optimal
Transport*, 2023, arXiv 2310.15141, the k-sequential selection algorithm (K-SEQ) in
SpecTr's draft selection. At a node with target law p, whose k drafts x_1 .. x_k are
i.i.d. samples of q,

    beta(rho) = sum over x of min(q(x), p(x) / rho)
    accept(rho) = 1 - (1 - beta(rho))^k
    rho       = the root of  accept(rho) = rho beta(rho)  in [1, k]
    accept x_i  if  r_i < p(x_i) / (rho q(x_i)),   r_i ~ U[0, 1);  the first one stops
    else      y ~ p(x) - min(q(x), p(x) / rho) accept(rho) / beta(rho), normalised

and after an acceptance the same at the next depth, with the drafts that continue the
accepted text. rho → the division factor, `scale`; k → the drafts below every node of
the accepted text (equal siblings are several nodes and one text). One draft is
rejection sampling. The acceptance rate of k drafts is at least (1 - 1/e) of
`optimal_transport.acceptance`.

Deviations from the paper: none in the law. The draft is any tree of i.i.d. siblings;
the paper's k sequences are `topologies/specinfer` with `expansion=(k, 1, 1, ...)`.

Cost per call: some 35 passes over V a depth, for the bisection.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from decoding import base, tree, vocab
from decoding.catalogue import Card

CARD = Card(
    paper="SpecTr, arXiv 2310.15141",
    guarantee=base.LAW,
    family="rejection",
    sources=("sun2023spectr",),
)

STEPS = 32  # halvings of [1, k]: to a float32's last bit


def verifier() -> base.Verifier:
    """Verify trees of i.i.d. siblings, which may repeat one another."""

    def verify(key, state, nodes: base.TokenTree, target: base.Target) -> base.Verdict:
        laws: Any = nodes.logits
        size = nodes.tokens.shape[0]
        below = (nodes.parents >= 0) & (nodes.kind == base.CANDIDATE)
        up = jnp.maximum(nodes.parents, 0)

        def body(carry: tuple) -> tuple:
            same, node, count, _, _ = carry
            drafts = below & same[up]
            p, q = vocab.softmax(target.logits[node]), vocab.softmax(laws[node])
            rho, ratio = scale(p, q, drafts.sum())
            coins = jax.random.uniform(jax.random.fold_in(key, count), (size,))
            likely, drawn = (vocab.gather(law, nodes.tokens) for law in (p, q))
            accepted = drafts & (coins * rho * drawn < likely)
            hit = accepted.any()
            child = jnp.argmax(accepted).astype(jnp.int32)
            matching = drafts & (nodes.tokens == nodes.tokens[child])
            rest = jnp.maximum(p - jnp.minimum(q, p / rho) * ratio, 0.0)
            rest = jnp.where(drafts.any() & (rest.sum() > 0), rest, p)
            node = jnp.where(hit, child, node)
            return jnp.where(hit, matching, same), node, count + hit, rest, hit

        zero = jnp.int32(0)
        root = jnp.arange(size) == 0
        start = (root, zero, zero, jnp.zeros_like(target.logits[0]), jnp.bool_(True))
        _, node, _, rest, _ = lax.while_loop(lambda c: c[4], body, start)
        token = vocab.sample(jax.random.fold_in(key, size), jnp.log(rest))
        path, count = tree.lineage(nodes, node)
        return base.Verdict(path, count, token)

    return base.Verifier(lambda params: base.State(), verify, base.LAW, (base.IID,))


def scale(p: Array, q: Array, k: Array) -> tuple[Array, Array]:
    """★ Find the division factor rho, and accept(rho) / beta(rho), for `k` drafts.

    rho is the upper end of the bisection, where accept <= rho beta, so the residual is
    nowhere negative (but for rounding).

    Args:
        p: the target's law, float32[V].
        q: the drafts' law, float32[V].
        k: int32[], number of drafts.
    """
    many = jnp.maximum(k, 1).astype(jnp.float32)

    def accept(rho: Array) -> tuple[Array, Array]:
        beta = jnp.minimum(jnp.minimum(q, p / rho).sum(), 1.0)
        return -jnp.expm1(many * jnp.log1p(-beta)), beta

    def halve(_: Array, ends: tuple) -> tuple:
        low, high = ends
        middle = (low + high) / 2
        chance, beta = accept(middle)
        above = chance > middle * beta
        return jnp.where(above, middle, low), jnp.where(above, high, middle)

    _, rho = lax.fori_loop(0, STEPS, halve, (jnp.ones_like(many), many))
    chance, beta = accept(rho)
    # If p and q are disjoint, nothing is accepted; the ratio tends to k.
    return rho, jnp.where(beta > 0, chance / jnp.where(beta > 0, beta, 1.0), many)
