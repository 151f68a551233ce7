"""What runs of a canvas, and what each node sees, against dense masks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding.caches import block_causal, dkv, dual, prefix, recompute
from decoding.denoising import forward
from decoding.denoising.schedule import Canvas
from models import base

TOKENS, BLOCK = 24, 4
POLICIES = {
    "recompute": recompute.canvas_policy("bidirectional", 0),
    "dual": dual.canvas_policy(),
    "block_causal": block_causal.canvas_policy(("block_causal",), BLOCK),
}


def canvas(start, lo, hi, limit, step):
    """One state of one row: known up to `lo`, its token the position."""
    place = jnp.arange(TOKENS)
    number = lambda x: jnp.asarray(x, jnp.int32)
    return Canvas(
        tokens=number(place),
        known=place < lo,
        born=jnp.where(place < start, -1, 0),
        start=number(start),
        lo=number(lo),
        hi=number(hi),
        begun=number(step),
        limit=number(limit),
        count=number(lo - start),
        step=number(step),
        window=5,
    )


def states(policy):
    """Two rows of two states each; in the second one a position more is known."""
    rows = [(6, 8, 11, 19, 3), (2, 4, 7, 16, 5)]
    both = []
    for start, lo, hi, limit, step in rows:
        one = canvas(start, lo, hi, limit, step)
        both.append([one, one.replace(known=one.known.at[lo + 1].set(True))])
    stack = lambda *leaves: jnp.stack(leaves)
    return jax.tree.map(stack, *[jax.tree.map(stack, *row) for row in both])


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("name", [*POLICIES, "prefix", "dkv"])
def test_a_steady_policy_runs_the_same_positions_in_all_states(name, shifted):
    """Also where the block's first one is known, whose law is read before the block.

    Else a key would be of the latest state that ran it, and drafts that are accepted
    together would leave another one. What lies in earlier blocks of BLOCK_CAUSAL no
    state changes. Planted: `dkv` is not steady.
    """
    others = {"prefix": prefix.canvas_policy(), "dkv": dkv.canvas_policy()}
    policy = {**POLICIES, **others}[name]
    one = canvas(6, 8, 11, 19, 3).replace(begun=jnp.int32(1))
    rows = [one.replace(known=one.known.at[8 + i].set(True)) for i in range(3)]
    stack = lambda *leaves: jnp.stack(leaves)[None]
    both = jax.tree.map(stack, one, *rows)
    todo = forward.plan(policy, both, jnp.ones((1, 4), bool), 5, shifted)
    first = 8 if policy.block else 0
    run = np.asarray(todo.run)[0, :, first:]
    assert policy.steady == (name != "dkv")
    assert (run == run[0]).all() == policy.steady


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("name", POLICIES)
def test_nodes_see_each_position_once(name, shifted):
    """In place what their state does not run, and its own nodes' slots."""
    policy = POLICIES[name]
    both = states(policy)
    active = jnp.ones((2, 2), bool)
    todo = forward.plan(policy, both, active, 5, shifted)
    widths = [*policy.widths(TOKENS, 5, 16), TOKENS][:1]
    size = forward.slots(policy, TOKENS, widths, 2)
    every = [forward._nodes(policy, todo, k, widths[0], TOKENS + 1) for k in range(2)]
    block = forward._block(policy, every, size)
    seen = np.asarray(base.dense_mask(block.visibility, size))
    pos = np.full((2, size), -1)
    pos[:, :TOKENS] = np.arange(TOKENS)
    written = [{} for _ in range(2)]
    for b in range(2):
        for n, slot in enumerate(np.asarray(block.slots[b])):
            if slot < size:
                written[b][slot] = (int(block.positions[b, n]), n)
    for b in range(2):
        for slot, (position, _) in written[b].items():
            pos[b, slot] = position
        width = every[0].positions.shape[1]
        for slot, (position, n) in written[b].items():
            sight = sorted(pos[b, seen[b, n]].tolist())
            end = int(both.limit[b, 0])
            if policy.block:
                end = min((position // BLOCK + 1) * BLOCK, end)
            assert sight == [*range(end)], (b, n, slot)
            # A branch sees its own nodes, and no other state's.
            others = {
                s for s, (_, m) in written[b].items() if (m < width) != (n < width)
            }
            shared = {s for s in others if n >= width and s < TOKENS}
            assert not seen[b, n, sorted(others - shared)].any()


def test_fault_branches_in_the_first_state_s_slots():
    """Planted: a branch that read in place what it runs would see positions twice."""
    policy = POLICIES["dual"]
    todo = forward.plan(policy, states(policy), jnp.ones((2, 2), bool), 5, False)
    every = [forward._nodes(policy, todo, k, 6, TOKENS + 1) for k in range(2)]
    bare = every[1]._replace(own=jnp.zeros_like(every[1].own))
    block = forward._block(policy, [every[0], bare], TOKENS + 6)
    seen = base.dense_mask(block.visibility, TOKENS + 6)
    sound = forward._block(policy, every, TOKENS + 6)
    assert (seen != base.dense_mask(sound.visibility, TOKENS + 6)).any()


def test_rows_that_are_done_run_nothing():
    policy = POLICIES["recompute"]
    active = jnp.asarray([[True, False], [False, False]])
    todo = forward.plan(policy, states(policy), active, 5, False)
    assert todo.run.sum(2).tolist() == [[19, 0], [0, 0]]
