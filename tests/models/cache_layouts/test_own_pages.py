"""Heads of unequal numbers of slots: pages, what they hold, and their bytes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models import base
from models.cache_layouts import kept, own_pages
from models.cache_layouts.kv_cache import DenseLayer

BATCH, GROUPS, DIM, PAGE, SLOTS = 2, 3, 8, 4, 48
LENGTH = np.array([41, 30])
KEEP, GROWS = np.array([12, 10]), 8
AFTER = 20  # of each head on average: the largest of KEEP, and GROWS
COUNT = np.array([[4, 21, 11], [10, 10, 10]])


@functools.cache
def texts():
    rng = np.random.default_rng(0)
    return rng.normal(size=(2, BATCH, GROUPS, 64, DIM)).astype(np.float32)


@functools.cache
def chosen():
    """Slots that stay, in order, and all others behind them."""
    rng = np.random.default_rng(1)
    index = np.zeros((BATCH, GROUPS, SLOTS), np.int32)
    for b, g in np.ndindex(BATCH, GROUPS):
        stay = np.sort(rng.permutation(LENGTH[b])[: COUNT[b, g]])
        index[b, g] = np.append(stay, np.setdiff1d(np.arange(SLOTS), stay))
    return index


@functools.cache
def layer():
    k, v = texts()
    pos = jnp.broadcast_to(jnp.arange(SLOTS, dtype=jnp.int32), (BATCH, GROUPS, SLOTS))
    whole = kept.KeptLayer(
        DenseLayer(jnp.asarray(k[:, :, :SLOTS]), jnp.asarray(v[:, :, :SLOTS])),
        jnp.zeros(BATCH, jnp.int32),
        64,
        0,
        0,
        pos=pos,
        queries=None,
        budget=jnp.zeros(BATCH, jnp.int32),
        prompt=jnp.zeros(BATCH, jnp.int32),
        notes={},
        extra={},
        after=AFTER,
        recent=0,
    )
    ints = (jnp.asarray(x, jnp.int32) for x in (chosen(), COUNT, LENGTH, KEEP))
    return own_pages.of_layer(whole, *ints, PAGE)


def written(count=GROWS):
    """The layer with `count` more tokens of each text."""
    k, v = (x.swapaxes(1, 2) for x in texts())
    slots = LENGTH[:, None] + np.arange(count)
    rows = np.arange(BATCH)[:, None]
    append = jax.jit(own_pages.HeadPages.append)
    return append(layer(), slots.astype(np.int32), k[rows, slots], v[rows, slots])


def due(b, g, more=0):
    """The tokens that head g of row b holds."""
    old = chosen()[b, g, : COUNT[b, g]]
    return np.append(old, LENGTH[b] + np.arange(more))


def holds(layer, more=0):
    """Whether every head holds its tokens, keys and values, at its slots."""
    k, v = layer.read()
    tokens = np.asarray(layer.tokens(jnp.asarray(LENGTH + more, jnp.int32)))
    for b, g in np.ndindex(BATCH, GROUPS):
        own = due(b, g, more)
        for x, all_ in zip((k, v), texts()):
            if not np.array_equal(np.asarray(x)[b, g, : len(own)], all_[b, g][own]):
                return False
        if tokens[b, g, : len(own)].tolist() != own.tolist():
            return False
        if (tokens[b, g, len(own) :] != -1).any():
            return False
    return True


def test_heads_hold_what_was_chosen():
    """Planted: a page of another head."""
    sound = layer()
    assert holds(sound) and holds(written(), GROWS)
    table = sound.store.table.at[0, 0, 0].set(sound.store.table[0, 1, 0])
    assert not holds(sound.replace(store=sound.store.replace(table=table)))


def test_pages_have_one_user_and_are_few():
    """Heads of 4, 21 and 11 slots, as many bytes as 12 each; planted: a shared page."""
    pool = layer().store
    total = pool.k.shape[1]
    assert total == GROUPS * AFTER // PAGE + GROUPS
    in_use = []
    for row in np.asarray(pool.table):
        pages = row[row < total]
        assert len(set(pages.tolist())) == len(pages)
        in_use.append(len(pages))
    assert in_use == np.asarray(pool.in_use).tolist()
    spare = AFTER - KEEP
    assert in_use == [-(-(COUNT[b] + spare[b]) // PAGE).sum() for b in range(BATCH)]
    largest = -(-(COUNT.max() + spare[0]) // PAGE) * GROUPS
    assert max(in_use) < largest


def test_slots_move_and_rows_too():
    """A chain's last node becomes its second; rows change places."""
    move = written().move(
        jnp.asarray(LENGTH[:, None] + 7, jnp.int32),
        jnp.asarray(LENGTH[:, None] + 1, jnp.int32),
    )
    k, _ = move.read()
    swapped, _ = move.gather(jnp.asarray([1, 0])).read()
    np.testing.assert_array_equal(np.asarray(k)[::-1], swapped)
    for b, g in np.ndindex(BATCH, GROUPS):
        found = np.asarray(k)[b, g, COUNT[b, g] + 1]
        np.testing.assert_array_equal(found, texts()[0][b, g, LENGTH[b] + 7])


def test_a_second_eviction_takes_new_pages():
    """Every other slot of each head; planted: indices of tokens, not of slots."""
    old = layer()
    count = -(-COUNT // 2)
    index = np.broadcast_to(2 * np.arange(SLOTS // 2), (BATCH, GROUPS, SLOTS // 2))
    ints = (jnp.asarray(x, jnp.int32) for x in (index, count, LENGTH))
    new = jax.jit(own_pages.HeadPages.keep)(old, *ints)
    assert holds(old)  # its pages are as they were
    tokens = np.asarray(new.tokens(jnp.asarray(LENGTH, jnp.int32)))
    k, _ = new.read()
    wrong = 0
    for b, g in np.ndindex(BATCH, GROUPS):
        stay, n = due(b, g)[::2], count[b, g]
        assert tokens[b, g, :n].tolist() == stay.tolist()
        np.testing.assert_array_equal(np.asarray(k)[b, g, :n], texts()[0][b, g][stay])
        wrong += stay.tolist() != index[b, g, :n].tolist()
    assert wrong and int(new.store.in_use.sum()) < int(old.store.in_use.sum())


@pytest.mark.parametrize("nodes", [1, 5])
def test_attention_reads_a_head_s_own_slots(nodes):
    """A chain behind the kept slots; planted: every head as long as the first."""
    more = written()
    rng = np.random.default_rng(3)
    q = rng.normal(size=(BATCH, nodes, 2 * GROUPS, DIM)).astype(np.float32)
    bits = base.pack_bits(jnp.tril(jnp.ones((nodes, nodes), bool)))
    bits = jnp.broadcast_to(bits, (BATCH, *bits.shape))
    seen = base.Visibility(jnp.asarray(LENGTH, jnp.int32), bits)
    out, lse = more.attend(jnp.asarray(q), seen, None, None, scale=0.25)

    def worst(alike):
        gap = 0.0
        for b, n, h in np.ndindex(*q.shape[:3]):
            own = due(b, h // 2, n + 1)
            if alike:
                own = own[: COUNT[b, 0] + n + 1]
            k, v = (x[b, h // 2][own] for x in texts())
            s = 0.25 * k @ q[b, n, h]
            p = np.exp(s)
            gap = max(gap, np.abs(p @ v / p.sum() - np.asarray(out)[b, n, h]).max())
            gap = max(gap, abs(np.log(p.sum()) - np.asarray(lse)[b, n, h]))
        return gap

    assert worst(False) < 1e-5 and worst(True) > 1e-2


def test_bytes_are_those_of_the_budget():
    """Keys, values and a token a slot; a page a head at most is lost."""
    pool = layer().store
    nbytes = sum(x.size * x.dtype.itemsize for x in (pool.k, pool.v, pool.pos))
    slot = 2 * 4 * DIM + 4
    assert nbytes == BATCH * (GROUPS * AFTER // PAGE + GROUPS) * PAGE * slot
    assert nbytes <= BATCH * GROUPS * (AFTER + PAGE) * slot
