"""Layers that read few of their slots: both forms of reading, lists, notes, carries."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models import base
from models.cache_layouts import sparse
from models.cache_layouts.kv_cache import DenseLayer
from models.cache_layouts.sparse import Asked, Chosen, Reader

B, G, R, S, D, LENGTH = 2, 2, 2, 32, 8, 20
RNG = np.random.default_rng(0)


def draw(*shape):
    return jnp.asarray(RNG.normal(size=shape), jnp.float32)


def products(layer, asked):
    s = jnp.einsum("bngrd,bgsd->bgrns", asked.q, layer.store.k).max(2)
    return jnp.where(asked.seen[:, None], s, -jnp.inf)


def make(**fields):
    reader = Reader(sparse.OWN, 6, products, lambda x: x.budget, **fields)
    store = DenseLayer(draw(B, G, S, D), draw(B, G, S, D))
    first = jnp.zeros((B,), jnp.int32)
    rows = (jnp.full((B,), 6, jnp.int32), jnp.full((B,), S, jnp.int32))
    layer = sparse.make(store, reader, S, (R, D), first, (0, 0), {}, {}, {}, rows)
    return replace(layer, is_read=True)


def block(nodes):
    """A chain of nodes behind LENGTH committed slots."""
    bits = base.pack_bits(jnp.tril(jnp.ones((nodes, nodes), bool)))
    prefix = jnp.full((B,), LENGTH, jnp.int32)
    seen = base.Visibility(prefix, jnp.broadcast_to(bits, (B, *bits.shape)))
    return Asked(
        draw(B, nodes, G, R, D), base.dense_mask(seen, S), prefix, seen.ancestors
    )


def part(asked, node):
    at = slice(node, node + 1)
    return asked._replace(
        q=asked.q[:, at], seen=asked.seen[:, at], ancestors=asked.ancestors[:, at]
    )


def test_a_wide_block_reads_what_single_nodes_gather():
    """Planted: every node reads the slots of the first."""
    layer, asked = make(), block(4)
    wide, _ = layer.read_few(asked, None, 0.0)
    for node in range(4):
        one, _ = layer.read_few(part(asked, node), None, 0.0)
        np.testing.assert_allclose(wide[:, node], one[:, 0], atol=1e-6)
    first = layer.choose(part(asked, 0))
    same = sparse._attend(layer, asked, first, None, 0.0)
    assert np.abs(wide - same).max() > 0.01


def test_it_reads_the_best_slots_and_its_own():
    """In NumPy; planted: without its own slot, of the lowest score."""
    layer, asked = make(), part(block(1), 0)
    k = layer.store.k.at[:, :, LENGTH].set(-5 * asked.q[:, 0].sum(2))
    layer = replace(layer, store=DenseLayer(k, layer.store.v))
    out, _ = layer.read_few(asked, None, 0.0)
    for own in (True, False):
        want = np.zeros((B, G, R, D))
        for b, g in np.ndindex(B, G):
            s = np.asarray(asked.q[b, 0, g] @ k[b, g].T, np.float64)[:, : LENGTH + 1]
            top = s.max(0).copy()
            top[LENGTH] = np.inf if own else -np.inf
            rounded = np.asarray(jnp.asarray(top, jnp.bfloat16), np.float64)
            at = np.argsort(-rounded, kind="stable")[:6]
            p = np.exp(s[:, at] - s[:, at].max(1, keepdims=True))
            p /= p.sum(1, keepdims=True)
            want[b, g] = p @ np.asarray(layer.store.v[b, g])[at]
        near = np.abs(out[:, 0] - want).max() < 1e-5
        assert near == own


def test_of_equal_scores_the_older_slot_is_read():
    scores = jnp.zeros((1, 1, 1, 9)).at[0, 0, 0, 4].set(1.0)
    chosen = sparse._best(scores, 3, jnp.asarray([3]), 1)
    assert sorted(np.asarray(chosen.index)[0, 0, 0].tolist()) == [0, 1, 4]


@pytest.mark.long
def test_a_list_is_gathered_and_masked_alike():
    """Both with what follows the list; planted: a list that begins elsewhere."""
    begin = lambda layer, prefix: prefix
    asked = block(3)
    make_list = lambda width: make(start=begin, width=width, listed=True)
    layer = make_list(8)
    index = jnp.broadcast_to(jnp.asarray([3, 1, 4, 10, 5, 9], jnp.int32), (B, G, 1, 6))
    chosen = Chosen(index, jnp.ones((B, G, 1, 6), bool))
    due = jnp.ones((B,), bool)
    found = []
    for width, since in ((8, LENGTH - 2), (S, LENGTH - 2), (8, LENGTH)):
        same = replace(layer, reader=make_list(width).reader)
        held = same.renewed(chosen, jnp.full((B,), since, jnp.int32), due)
        found.append(held.read_few(asked, None, 0.0)[0])
    np.testing.assert_allclose(found[0], found[1], atol=1e-6)
    assert np.abs(found[0] - found[2]).max() > 0.01


def test_rows_that_are_not_due_keep_their_list():
    layer = make(start=lambda layer, prefix: prefix, width=8, listed=True)
    chosen = Chosen(jnp.ones((B, G, 1, 6), jnp.int32), jnp.ones((B, G, 1, 6), bool))
    since = jnp.full((B,), LENGTH, jnp.int32)
    after = layer.renewed(chosen, since, jnp.asarray([True, False]))
    assert after.extra["chosen"].tolist() == [[6, 6], [0, 0]]
    assert after.extra["since"].tolist() == [[LENGTH] * 2, [0] * 2]


def test_units_are_read_whole():
    scores = draw(1, 1, 1, 5)
    chosen = sparse._best(scores, 2, jnp.asarray([2]), 4)
    best = np.argsort(-np.asarray(scores)[0, 0, 0])[:2]
    want = [p * 4 + i for p in best for i in range(4)]
    assert np.asarray(chosen.index)[0, 0, 0].tolist() == want


def test_notes_move_with_their_slots():
    """Planted: notes that stay behind."""
    mark = lambda layer, k: {"label": k[..., :2]}
    layer = make(mark=mark)
    layer = replace(layer, notes={"label": jnp.zeros((B, G, S, 2))})
    slots = jnp.asarray([[20, 21, 22]] * B, jnp.int32)
    k = draw(B, 3, G, D)
    after = layer.append(slots, k, k)
    moved = after.move(slots[:, 2:], slots[:, 1:2])
    label = lambda x: x.notes["label"][:, :, 21]
    np.testing.assert_array_equal(label(moved), k[:, 2, :, :2])
    assert np.abs(label(after) - k[:, 2, :, :2]).max() > 0.01


def test_a_call_begins_with_the_newest_slots():
    layer, asked = make(), block(2)
    fresh = layer.fresh(asked)
    for node in range(2):
        newest = np.sort(np.asarray(fresh.index)[0, 0, node])
        assert newest.tolist() == list(range(LENGTH + node - 5, LENGTH + node + 1))


@pytest.mark.parametrize("listed", [False, True])
def test_layers_gather_rows(listed):
    fields = {"start": lambda layer, prefix: prefix, "width": 8, "listed": listed}
    layer = make(**(fields if listed else {}))
    other = layer.gather(jnp.asarray([1, 0]))
    for x, y in zip(jax.tree.leaves(layer), jax.tree.leaves(other)):
        np.testing.assert_array_equal(x[1], y[0])
