"""The contract of constraints that draw tokens by an oracle on the host."""

import jax
import jax.numpy as jnp
import numpy as np

from decoding import vocab
from decoding.catalogue import Spec
from decoding.conformance import kit
from decoding.conformance.require import require
from decoding.hypotheses import nodes
from decoding.hypotheses.proposal import Paths, Proposal

TEXT = (0, 1)  # tokens behind which a token is drawn
BATCH, BATCHES = 512, 16
LIMIT = 4.5  # standard errors; of 8 tokens one strays so far once in 2e4 runs


def check(spec: Spec) -> None:
    """Check an estimator against every contract of this file.

    Raises:
        AssertionError: it breaks a property; the message names it.
    """
    is_right_on_average(spec)


def built(spec: Spec) -> Proposal:
    """Build an estimator for the toy's vocabulary."""
    return kit.spec(spec.name, **spec.arguments).build(kit.PARTS)


def law(seed: int) -> jax.Array:
    """Return logits float32[V]."""
    return jnp.asarray(np.random.default_rng(seed).normal(size=kit.VOCAB), jnp.float32)


def paths() -> Paths:
    """Return a tree of one text, at whose end every token is drawn."""
    tree = nodes.first(jnp.zeros(1, jnp.int32), 4)
    row = jax.tree.map(lambda x: x[0], tree)
    size = len(TEXT)
    tokens = row.tokens.at[1 : size + 1].set(jnp.asarray(TEXT))
    parents = row.parents.at[1 : size + 1].set(jnp.arange(size))
    at = jnp.full(BATCH, size, jnp.int32)
    row = row.replace(tokens=tokens, parents=parents)
    return Paths(row, at, jnp.ones(BATCH, bool))


def draws(spec: Spec, logits: jax.Array) -> tuple[np.ndarray, np.ndarray]:
    """Draw tokens and weights, `BATCH * BATCHES` of them."""
    part, about = built(spec), paths()
    propose = jax.jit(lambda key, rows, noise: part.propose(key, about, rows, noise))
    tokens, weights = [], []
    for seed in range(BATCHES):
        key = jax.random.key(seed)
        noise = jax.random.gumbel(jax.random.fold_in(key, 1), (BATCH, kit.VOCAB))
        rows = jnp.broadcast_to(logits, noise.shape)
        token, weight = propose(key, rows, noise)
        tokens.append(np.asarray(token))
        weights.append(np.exp(np.asarray(weight, np.float64)))
    return np.concatenate(tokens), np.concatenate(weights)


def is_right_on_average(spec: Spec) -> None:
    """Require E[w 1{x}] = p(x) of the tokens that may follow, and 0 of the others.

    Those that may are the ones that are ever drawn with a weight.
    """
    for seed in range(2):
        logits = law(seed)
        token, weight = draws(spec, logits)
        require(np.isfinite(weight).all(), spec, "a weight is no number")
        p = np.asarray(vocab.softmax(logits))
        allowed = np.unique(token[weight > 0])
        require(0 < len(allowed) < kit.VOCAB, spec, "it forbids nothing, or everything")
        for x in allowed:
            share = weight * (token == x)
            error = share.std() / len(share) ** 0.5
            strays = abs(share.mean() - p[x]) > LIMIT * error
            words = f"token {x} has {share.mean():.4f} on average, not {p[x]:.4f}"
            require(not strays, spec, words)
