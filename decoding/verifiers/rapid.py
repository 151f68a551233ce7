"""RAPID: the target's law is shifted towards a draft model with retrieved context.

Chen, Feng, Ni, Li, Shieh, *Long-Context Inference with Retrieval-Augmented
Speculative Decoding*, 2025, arXiv 2502.20330, section 3.2. For a draft x ~ q of a
chain, with the target's logits z and p = softmax(z),

    z'       = z - eta 1[q >= alpha max q] (p - q),   p' = softmax(z')
    accept x   if  r <= p'(x) / q(x),   r ~ U[0, 1)
    else the next token ~ max(0, p - q, p - p'), normalised;  after all drafts ~ p

eta, alpha → `Row`; p, q → softmax of `target.logits`, `tree.logits`, both after the
transform. The token's law is min(q, p') + (1 - sum min(q, p')) norm(max(0, p - q, p -
p')), which for eta > 0 is neither p nor p': the guarantee is LOSSY. With eta = 0 it is
speculative sampling, and LAW. The default eta is the paper's for an 8B model that
drafts for itself; the paper uses 5 to 50, by pair of models. Any drafter that samples
will do; the paper's is `drafters/rapid`.

Deviations from the paper: none. At temperature 0 p and q are those of the unscaled
logits; for greedy text keep the default verifier.

Cost per call: three log-softmaxes of [N, V], one draw over V.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array

from decoding import base, vocab
from decoding.catalogue import Card
from models.errors import MethodError

CARD = Card(
    paper="RAPID, arXiv 2502.20330",
    guarantee=base.LOSSY,
    family="relaxed",
    data=("eta", "alpha"),
    sources=("chen2025long",),
)


@struct.dataclass
class Row:
    """The numbers of one row."""

    eta: Array  # float32[]: strength of the shift
    alpha: Array  # float32[]: share of the best q below which nothing is shifted


def leaning(p_logits: Array, q_logits: Array, row: Row) -> Array:
    """Compute log p' float32[..., V] from the target's and the draft's logits."""
    logp = vocab.log_softmax(p_logits)
    q = vocab.softmax(q_logits)
    likely = vocab.near_best_mask(q, lambda best: row.alpha * best)
    lean = jnp.where(likely, jnp.exp(logp) - q, 0.0)
    return vocab.log_softmax(logp - row.eta * lean)


def rest(p_logits: Array, q_logits: Array, lean: Array) -> Array:
    """Compute log-weights float32[V] of the token after a rejection.

    They are p's if the residual is empty.
    """
    p, q = vocab.softmax(p_logits), vocab.softmax(q_logits)
    residual = jnp.maximum(jnp.maximum(p - q, p - jnp.exp(lean)), 0.0)
    return jnp.log(jnp.where(vocab.maximum(residual) > 0, residual, p))


def verifier(eta: float = 10.0, alpha: float = 0.1) -> base.Verifier:
    """Verify chains of samples.

    Args:
        eta: strength of the shift towards the draft; 0 is exact.
        alpha: share of the best q below which a token's logit is not shifted.
    """
    if not eta >= 0:
        raise MethodError(f"eta={eta}: use a number >= 0 (0 is exact)")
    if not 0 <= alpha <= 1:
        raise MethodError(f"alpha={alpha}: use a share of the best q, 0 to 1")

    def init(params: Any) -> base.State:
        return base.State(Row(jnp.float32(eta), jnp.float32(alpha)))

    def verify(key, state, nodes: base.TokenTree, target: base.Target) -> base.Verdict:
        laws: Any = nodes.logits
        if not nodes.linear:
            raise MethodError(
                "verifiers/rapid tests one draft a node and this tree has siblings: "
                "use topologies/chain"
            )
        size = nodes.tokens.shape[0] - 1
        drafts = nodes.tokens[1:]
        live = nodes.kind[1:] == base.CANDIDATE
        lean = leaning(target.logits, laws, state.row)
        ratio = vocab.at(lean[:-1], drafts) - vocab.token_logprob(laws[:-1], drafts)
        coins = jnp.log(jax.random.uniform(jax.random.fold_in(key, 0), (size,)))
        accepted = jnp.cumprod(live & (coins < ratio))
        count = accepted.sum().astype(jnp.int32)
        p = target.logits[count]
        rejected = jnp.pad(live, (0, 1))[count]
        last_logits = jnp.where(rejected, rest(p, laws[count], lean[count]), p)
        token = vocab.sample(jax.random.fold_in(key, 1), last_logits)
        path = jnp.arange(1, size + 1, dtype=jnp.int32)
        path = jnp.where(path <= count, path, 0)
        return base.Verdict(path, count, token)

    guarantee = base.LOSSY if eta > 0 else base.LAW
    return base.Verifier(init, verify, guarantee, (base.IID,))
