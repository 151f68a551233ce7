"""Recursive rejection sampling: the siblings of a node are tested one after another.

Miao et al., *SpecInfer*, 2024, arXiv 2305.09781, algorithm 2 (with replacement); Jeon,
Gagrani, Goel, Park, Lee, Lott, *Recursive Speculative Decoding*, 2024, arXiv
2402.14160, recursive rejection sampling (without replacement). At a node with law p
whose children x_1, x_2, ... were drawn from q in that order, P_1 = p, D_1 = q and

    accept x_i     if  r_i < P_i(x_i) / D_i(x_i),   r_i ~ U[0, 1)
    P_{i+1}        = norm((P_i - D_i)+)
    D_{i+1}        = q (IID),   norm(D_i without x_i) (NO_REPLACE)
    after the last ~ P

and the same again at the accepted child with its own p and q. P, D → `left`, `law` of
the carry, as log-probabilities; r_i → a key folded by the number of the test. For POINT
children D_i is one-hot at x_i, so they are accepted with P_i(x_i).

Siblings must be tested in the order they were drawn. Sorting them by q, or dropping
some because their q is low, makes x_i depend on itself, and the law is no longer p.

Deviations from the papers: if D runs out of support (fewer tokens than siblings), the
tests stop and the residual is sampled; Sequoia continues with a uniform law.

Cost per call: two or three passes over V a test, as many tests as are performed; a
batch waits for its longest row.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array, lax

from decoding import base, vocab
from decoding.catalogue import Card

CARD = Card(
    paper="Recursive speculative decoding, arXiv 2402.14160",
    guarantee=base.LAW,
    family="rejection",
    sources=("jeon2024recursive", "miao2024specinfer"),
)


@struct.dataclass
class Walk:
    """The state of the tests."""

    node: Array  # int32[]: deepest accepted node
    tried: Array  # int32[]: the node's child that was tested last, else the node
    left: Array  # float32[V]: P
    law: Array  # float32[V]: D; zeros for POINT, whose D is computed at the test
    path: Array  # int32[D]
    count: Array  # int32[]
    test: Array  # int32[]: tests performed


def verifier() -> base.Verifier:
    """Verify trees of IID, NO_REPLACE or POINT siblings exactly."""

    def verify(key, state, nodes: base.TokenTree, target: base.Target) -> base.Verdict:
        laws: Any = nodes.logits  # absent from POINT trees, which need none
        size = nodes.tokens.shape[0]
        index = jnp.arange(size, dtype=jnp.int32)
        ids = jnp.arange(target.logits.shape[1], dtype=jnp.int32)
        point = nodes.draw == base.POINT

        def arrive(node: Array) -> tuple[Array, Array]:
            left = vocab.log_softmax(target.logits[node])
            law = jnp.zeros_like(left) if point else laws[node]
            return left, vocab.log_softmax(law)

        def next_sibling(walk: Walk) -> Array:
            waiting = (nodes.parents == walk.node) & (index > walk.tried)
            waiting &= nodes.kind == base.CANDIDATE
            return jnp.where(waiting.any(), jnp.argmax(waiting), size)

        def more(walk: Walk) -> Array:
            supported = vocab.maximum(walk.law) > -jnp.inf
            return supported & (next_sibling(walk) < size)

        def body(walk: Walk) -> Walk:
            child = next_sibling(walk).astype(jnp.int32)
            token = nodes.tokens[child]
            law = jnp.where(ids == token, 0.0, -jnp.inf) if point else walk.law
            coin = jnp.log(jax.random.uniform(jax.random.fold_in(key, walk.test)))
            ratio = vocab.at(walk.left, token) - vocab.at(law, token)
            accept = coin < ratio
            left, fresh = arrive(child)
            after = walk.law
            if nodes.draw == base.NO_REPLACE:
                after = _without(walk.law, ids == token)
            return Walk(
                node=jnp.where(accept, child, walk.node),
                tried=child,
                left=jnp.where(accept, left, vocab.residual(walk.left, law)),
                law=jnp.where(accept, fresh, after),
                path=jnp.where(accept, walk.path.at[walk.count].set(child), walk.path),
                count=walk.count + accept,
                test=walk.test + 1,
            )

        zero = jnp.int32(0)
        path = jnp.zeros((nodes.depth,), jnp.int32)
        walk = Walk(zero, zero, *arrive(zero), path, zero, zero)
        if nodes.depth:
            walk = lax.while_loop(more, body, walk)
        token = vocab.sample(jax.random.fold_in(key, size), walk.left)
        return base.Verdict(walk.path, walk.count, token)

    draws = (base.NO_REPLACE, base.IID, base.POINT)
    return base.Verifier(lambda params: base.State(), verify, base.LAW, draws)


def _without(law: Array, token: Array) -> Array:
    """Remove the tokens of a mask from a log-law; all -inf if none is left."""
    rest = jnp.where(token, -jnp.inf, law)
    total = vocab.logsumexp(rest)
    return jnp.where(total > -jnp.inf, rest - total, -jnp.inf)
