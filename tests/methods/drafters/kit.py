"""A drafter called by hand, without a loop around it."""

import jax
import jax.numpy as jnp
import numpy as np

from decoding import base

IDENTITY = base.LogitsTransform(
    lambda tokens, length: base.State(), lambda state, logits, aux: logits
)


def context(texts: list[list[int]], size: int = 32, junk: int = 0) -> base.Context:
    """A context of ragged `texts`; `junk` fills the buffer past their ends."""
    tokens = np.full((len(texts), size), junk, np.int32)
    for i, text in enumerate(texts):
        tokens[i, : len(text)] = text
    return base.Context(
        params={},
        tokens=jnp.asarray(tokens),
        length=jnp.array([len(t) for t in texts], jnp.int32),
        cache=None,
        law=IDENTITY,
        transform=base.State(),
        noise=lambda position: jnp.zeros((len(texts), 8)),
    )


def keys(batch: int) -> jax.Array:
    return jax.random.split(jax.random.key(0), batch)


def drafts(drafter: base.Drafter, texts: list[list[int]], **fields) -> list[list[int]]:
    """The chain that a drafter proposes after each text."""
    ctx = context(texts, **fields)
    nodes, _, _ = drafter.draft(keys(len(texts)), ctx, drafter.init(ctx))
    there = np.asarray(nodes.kind[:, 1:]) == base.CANDIDATE
    proposed = np.asarray(nodes.tokens[:, 1:])
    assert (np.asarray(nodes.tokens[:, 0]) == [t[-1] for t in texts]).all()
    assert nodes.tokens.shape[1] == drafter.nodes and nodes.depth == drafter.depth
    assert (np.diff(there.astype(int), axis=1) <= 0).all()  # no draft after a gap
    return [t[keep].tolist() for t, keep in zip(proposed, there)]


def outcome(nodes: base.TokenTree, logits, active) -> base.Outcome:
    """A round that accepted nothing."""
    batch = nodes.tokens.shape[0]
    verdict = base.Verdict(
        jnp.zeros((batch, nodes.depth), jnp.int32),
        jnp.zeros((batch,), jnp.int32),
        jnp.zeros((batch,), jnp.int32),
    )
    out = base.ModelOutput(jnp.asarray(logits, jnp.float32), {})
    return base.Outcome(nodes, verdict, out, out.logits, jnp.asarray(active))
