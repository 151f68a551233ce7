"""Speculative sampling: accept a draft with min(1, p/q), else draw from the residual.

Leviathan, Kalman, Matias, *Fast Inference from Transformers via Speculative Decoding*,
2023, arXiv 2211.17192, algorithm 1; Chen, Borgeaud, Irving, Lespiau, Sifre, Jumper,
*Accelerating Large Language Model Decoding with Speculative Sampling*, 2023, arXiv
2302.01318, algorithm 2. For the drafts x_1 .. x_gamma of a chain, x_i ~ q_{i-1},

    accept x_i      if  r_i < p_{i-1}(x_i) / q_{i-1}(x_i),   r_i ~ U[0, 1)
    n             = number of drafts accepted before the first that is not
    next token    ~ norm((p_n - q_n)+) if draft n + 1 was rejected, p_n if none was

p, q → softmax of `target.logits`, `tree.logits`; r → one uniform a draft; n → `count`.
For a draft that was not sampled (POINT) q is one-hot: it is accepted with p(x), and the
residual is p without x. One draft is accepted with probability 1 - TV(p, q).

Deviations from the paper: none in the law. If p = q the residual is empty by rounding;
it is then p (a rejection that had probability 0 up to rounding).

Cost per call: one log-softmax of [N, V] for p and for q, one draw over V.
"""

from typing import Any

import jax
import jax.numpy as jnp

from decoding import base, vocab
from decoding.catalogue import Card
from models.errors import MethodError

CARD = Card(
    paper="Speculative sampling, arXiv 2211.17192",
    guarantee=base.LAW,
    family="rejection",
    sources=("leviathan2023fast", "chen2023accelerating"),
)


def verifier() -> base.Verifier:
    """Verify chains; for trees with siblings use `recursive_rejection`."""

    def verify(key, state, nodes: base.TokenTree, target: base.Target) -> base.Verdict:
        laws: Any = nodes.logits  # absent from POINT trees, which need none
        if not nodes.linear:
            raise MethodError(
                "verifiers/rejection tests one draft a node and this tree has "
                "siblings: use verifiers/recursive_rejection, or topologies/chain"
            )
        size = nodes.tokens.shape[0] - 1
        drafts = nodes.tokens[1:]
        live = nodes.kind[1:] == base.CANDIDATE
        logp = vocab.token_logprob(target.logits[:-1], drafts)
        logq = jnp.zeros(size)
        if nodes.draw != base.POINT:
            logq = vocab.token_logprob(laws[:-1], drafts)
        coins = jnp.log(jax.random.uniform(jax.random.fold_in(key, 0), (size,)))
        accepted = jnp.cumprod(live & (coins < logp - logq))
        count = accepted.sum().astype(jnp.int32)

        if nodes.draw == base.POINT:
            ids = jnp.arange(target.logits.shape[1])
            law = jnp.where(ids == jnp.pad(drafts, (0, 1))[count], 0.0, -jnp.inf)
        else:
            law = laws[count]
        p = target.logits[count]
        rejected = jnp.pad(live, (0, 1))[count]
        last_logits = jnp.where(rejected, vocab.residual(p, law), p)
        token = vocab.sample(jax.random.fold_in(key, 1), last_logits)
        path = jnp.arange(1, size + 1, dtype=jnp.int32)
        path = jnp.where(path <= count, path, 0)
        return base.Verdict(path, count, token)

    draws = (base.IID, base.NO_REPLACE, base.POINT)
    return base.Verifier(lambda params: base.State(), verify, base.LAW, draws)
