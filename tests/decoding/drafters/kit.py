"""A drafter called by hand, without a loop around it."""

import dataclasses

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
        active=jnp.ones(len(texts), bool),
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


def jitted(drafter: base.Drafter, size: int = 32):
    """`draft(texts, state=None) -> tree, state`, compiled once for each batch size."""

    @jax.jit
    def call(tokens, length, state):
        ctx = dataclasses.replace(blank, tokens=tokens, length=length)
        return drafter.draft(keys(tokens.shape[0]), ctx, state)[:2]

    blank = context([[0]], size)

    def draft(texts: list[list[int]], state: base.State | None = None):
        ctx = context(texts, size)
        return call(ctx.tokens, ctx.length, state or drafter.init(ctx))

    return draft


def paths(nodes: base.TokenTree, row: int = 0) -> list[tuple[int, ...]]:
    """Every candidate as the tokens on its path, in the order of the nodes."""
    known: dict[int, tuple[int, ...]] = {0: ()}
    parts = (nodes.tokens, nodes.parents, nodes.kind)
    tokens, parents, kind = (np.asarray(x)[row].tolist() for x in parts)
    for i in range(1, len(tokens)):
        assert parents[i] < i
        if kind[i] == base.CANDIDATE:
            known[i] = (*known[parents[i]], tokens[i])
    found = list(known.values())[1:]
    assert len(set(found)) == len(found)  # no sibling stands twice
    assert max(map(len, found), default=0) <= nodes.depth
    return found


def rounds(run, prompts, new: int = 40):
    """Step a `Run` of the conformance kit: the state after each round, the number of
    accepted drafts, and which rows had room for a whole path."""
    state = run.start(prompts, new=new)
    depth = run.parts.program.drafter.depth
    while not bool(state.done.all()):
        room = np.asarray(~state.done & (state.limit - state.length > depth + 1))
        state, seen = run.engine.step(run.params, state)
        yield state, np.asarray(seen.verdict.count), room
