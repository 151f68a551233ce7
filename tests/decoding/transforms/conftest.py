"""What every transform is held to: parity with HF, trees, sweeps without compiling."""

import pathlib
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding import base, tree

GOLDEN = pathlib.Path(__file__).parents[2] / "golden" / "transforms.npz"


@pytest.fixture(scope="session")
def golden() -> dict[str, np.ndarray]:
    """The file of tests/golden/make_transforms_golden.py."""
    with np.load(GOLDEN) as file:
        return dict(file)


def begin(transform, tokens, length) -> base.State:
    """The state after prompts, as the loop makes it."""
    return jax.vmap(transform.init, out_axes=base.ROWS)(
        jnp.asarray(tokens, jnp.int32), jnp.asarray(length, jnp.int32)
    )


def apply_rows(transform, state: base.State, logits) -> jax.Array:
    """`apply` on rows [B, V]."""
    return jax.vmap(
        lambda state, logits: transform.apply(state, logits, {}), in_axes=(base.ROWS, 0)
    )(state, jnp.asarray(logits, jnp.float32))


@pytest.fixture(scope="session")
def run(golden) -> Callable:
    """run(transform) -> float32[R, V]: the golden text, its prompt given to `init`."""

    def go(transform) -> np.ndarray:
        tokens, prompt = golden["tokens"], int(golden["prompt"])
        rows = len(tokens)
        buffer = np.where(np.arange(tokens.shape[1]) < prompt, tokens, 77)
        state = begin(transform, buffer, [prompt] * rows)
        if transform.advance is not None:
            advance = jax.jit(tree.over_rows(transform.advance, 3))
            for column in tokens[:, prompt:].T:
                at = jnp.asarray(column, jnp.int32)
                state = advance(state, at, golden["logits"], {})
        return np.asarray(apply_rows(transform, state, golden["logits"]))

    return go


@pytest.fixture(scope="session")
def parity(golden, run) -> Callable:
    """parity(name, transform): equal to HF's processor; the supports exactly."""

    def check(name: str, transform) -> None:
        want, got = golden[name], run(transform)
        np.testing.assert_array_equal(np.isneginf(got), np.isneginf(want))
        live = ~np.isneginf(want)
        np.testing.assert_allclose(got[live], want[live], rtol=1e-6, atol=1e-6)

    return check


def _path(parents, node: int) -> list[int]:
    """Node indices from below the root down to `node`."""
    path = []
    while node > 0:
        path.append(node)
        node = parents[node]
    return path[::-1]


@pytest.fixture(scope="session")
def tree_equals_replay() -> Callable:
    """tree_equals_replay(transform, vocab): is the state at every node of a tree, leaf
    by leaf, the state after replaying its path, and what `apply` returns the same?

    `node_states` may be replaced, to plant a fault.
    """

    def check(transform, vocab: int, node_states=tree.node_states) -> bool:
        rng = np.random.default_rng(0)
        batch, nodes = 2, 9
        parents = np.array([-1] + [rng.integers(0, i) for i in range(1, nodes)])
        tokens = rng.integers(0, vocab, (batch, nodes)).astype(np.int32)
        logits = rng.standard_normal((batch, nodes, vocab)).astype(np.float32)
        start = begin(transform, rng.integers(0, vocab, (batch, 6)), [6, 1])
        grown = base.TokenTree(
            jnp.asarray(tokens),
            jnp.broadcast_to(jnp.asarray(parents, jnp.int32), tokens.shape),
            jnp.full(tokens.shape, base.CANDIDATE),
            depth=nodes - 1,
        )
        states = jax.jit(lambda *a: node_states(transform, *a, {}))(
            start, grown, logits
        )
        step = jax.jit(transform.advance or (lambda state, token, logits, aux: state))
        read = jax.jit(lambda state, logits: transform.apply(state, logits, {}))

        def at(state: base.State, *index: int) -> base.State:
            return base.State(jax.tree.map(lambda x: x[index], state.row), state.shared)

        same = True
        for b, node in np.ndindex(batch, nodes):
            replayed, found = at(start, b), at(states, b, node)
            for n in _path(parents, node):
                replayed = step(replayed, tokens[b, n], logits[b, parents[n]], {})
            leaves = zip(jax.tree.leaves(found.row), jax.tree.leaves(replayed.row))
            same &= all(bool((x == y).all()) for x, y in leaves)
            got = read(found, logits[b, node])
            same &= bool((got == read(replayed, logits[b, node])).all())
            assert not np.isnan(got).any() and np.isfinite(got).any()
        return same

    return check


@pytest.fixture(scope="session")
def along_a_chain() -> Callable:
    """A faulty `node_states` that takes the node before for the parent."""

    def faulty(transform, state, grown, logits, aux) -> base.State:
        before = jnp.arange(-1, grown.parents.shape[1] - 1)
        parents = jnp.broadcast_to(before, grown.parents.shape)
        wrong = grown.replace(parents=parents)
        return tree.node_states(transform, state, wrong, logits, aux)

    return faulty


@pytest.fixture(scope="session")
def one_program() -> Callable:
    """one_program(make, values): does one compiled program, traced with the transform
    of the first value, serve the others through the state alone?"""

    def check(make: Callable, values, vocab: int = 31) -> bool:
        rng = np.random.default_rng(1)
        tokens = jnp.asarray(rng.integers(0, vocab, 8), jnp.int32)
        logits = jnp.asarray(rng.standard_normal(vocab) * 3, jnp.float32)

        def program(made, state: base.State) -> jax.Array:
            if made.advance is not None:
                state = made.advance(state, jnp.int32(5), logits, {})
            return made.apply(state, logits, {})

        first = make(values[0])
        compiled, seen, same = jax.jit(lambda state: program(first, state)), [], True
        for value in values:
            made = make(value)
            state = made.init(tokens, jnp.int32(6))
            seen.append(np.asarray(compiled(state)))
            same &= bool(np.allclose(seen[-1], program(made, state), rtol=1e-6))
        assert compiled._cache_size() == 1
        return same and any((seen[0] != other).any() for other in seen[1:])

    return check
