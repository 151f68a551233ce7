"""GEAR's layout: which slots are codes for which node, and when they are coded."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models import base
from models.cache_layouts import gear, residual_codes, stored
from models.cache_layouts.residual_codes import KEYS, VALUES, Rule
from models.errors import ConfigError

GROUPS, DIM, SIZE, BLOCK, WINDOW = 2, 8, 256, 32, 16
RULE = Rule(2, 4, 1, 0.05)
LENGTHS = np.array([200, 77, 20, 47])
PARENTS = [-1, 0, 1, 2, 3, 0]  # a chain of five, and a second child of the root
DEPTH = np.array([0, 1, 2, 3, 4, 1])


@functools.cache
def texts():
    rng = np.random.default_rng(0)
    return rng.normal(size=(2, len(LENGTHS), GROUPS, SIZE, DIM)).astype(np.float32)


def make(**changes):
    rest = {"rule": RULE, "block": BLOCK, "window": WINDOW, **changes}
    return gear.cache(1, len(LENGTHS), SIZE, GROUPS, DIM, jnp.float32, **rest)


@jax.jit
def write(layer, slots, k, v, before, after):
    return layer.append(slots, k, v).settle(before, after)


def append(layer, start, count, settled=True):
    """Tokens `start[b]`... of each text, where `count[b]` of them are there."""
    k, v = (x.swapaxes(1, 2) for x in texts())
    index = np.arange(WINDOW)
    at = np.minimum(start[:, None] + index, SIZE - 1)
    rows = np.arange(len(start))[:, None]
    slots = np.where(index < count[:, None], start[:, None] + index, SIZE + index)
    numbers = (slots, start, start + count if settled else start)
    slots, start, after = (x.astype(np.int32) for x in numbers)
    return write(layer, slots, k[rows, at], v[rows, at], start, after)


@functools.cache
def filled(step=WINDOW):
    layer, done = make().layers[0], 0 * LENGTHS
    while (done < LENGTHS).any():
        count = np.clip(LENGTHS - done, 0, step)
        layer = append(layer, done, count)
        done = done + count
    return layer


@functools.cache
def coded():
    """What the codes of every block of the texts stand for."""
    found = []
    for x, axis in zip(texts(), (KEYS, VALUES)):
        cut = jnp.asarray(x.reshape(*x.shape[:2], -1, BLOCK, DIM))
        codes = residual_codes.compress(cut, RULE, axis)
        found.append(
            np.asarray(residual_codes.expand(codes, RULE, axis)).reshape(x.shape)
        )
    return found


def boundary(position):
    return max((position - WINDOW) // BLOCK * BLOCK, 0)


def test_complete_blocks_are_coded():
    """Planted: a block with a token that is not committed."""
    layer = append(filled(), LENGTHS, np.full(len(LENGTHS), 5), settled=False)
    k, v = layer._expanded()
    for b, n in enumerate(LENGTHS):
        whole = n // BLOCK * BLOCK
        for x, due in zip((k, v), coded()):
            np.testing.assert_allclose(
                np.asarray(x)[b, :, :whole], due[b, :, :whole], atol=2e-4
            )
        assert not np.asarray(k)[b, :, whole:].any()  # row 3 would have a block


def test_steps_do_not_matter():
    one, other = filled(), filled(5)
    for b, n in enumerate(LENGTHS):
        for x, y in zip(one.read(), other.read()):
            np.testing.assert_allclose(x[b, :, :n], y[b, :, :n], atol=2e-4)


def length_of(method, window):
    """Lines of the program that completes blocks."""
    layer = make(window=window).layers[0]
    none = jnp.zeros(len(LENGTHS), jnp.int32)
    return str(jax.make_jaxpr(lambda x: method(x, none, none + window))(layer)).count(
        "\n"
    )


def test_the_program_does_not_grow_with_the_window():
    """Planted: the layout's own form, with a piece of program for each block."""
    own, unrolled = gear.GearLayer._completed, gear.QuantizedLayer._completed
    assert length_of(own, 512) == length_of(own, 64)
    assert length_of(unrolled, 512) > 2 * length_of(unrolled, 64)


def attended(positions=None):
    """The outputs at a tree behind each text."""
    layer = append(filled(), LENGTHS, np.full(len(LENGTHS), len(PARENTS)), False)
    rng = np.random.default_rng(1)
    q = rng.normal(size=(len(LENGTHS), len(PARENTS), 4, DIM)).astype(np.float32)
    own = np.eye(len(PARENTS), dtype=bool)
    for i, parent in enumerate(PARENTS[1:], 1):
        own[i] |= own[parent]
    bits = base.pack_bits(jnp.asarray(own))
    bits = jnp.broadcast_to(bits, (len(LENGTHS), *bits.shape))
    seen = base.Visibility(jnp.asarray(LENGTHS, jnp.int32), bits)
    at = jnp.asarray(LENGTHS[:, None] + DEPTH, jnp.int32)
    slots = jnp.tile(jnp.arange(SIZE, dtype=jnp.int32), (len(LENGTHS), 1))
    found, _ = layer.attend(jnp.asarray(q), seen, at, slots, scale=0.25)
    return q, own, np.asarray(found)


def test_precision_depends_on_the_node_s_position():
    """Rows 1 and 3 pass a boundary in the tree; planted: the root's boundary."""
    q, own, found = attended()
    exact, codes = texts(), coded()

    def worst(of_root):
        out = np.zeros(q.shape)
        for b, n, h in np.ndindex(*q.shape[:3]):
            length = LENGTHS[b]
            first = boundary(length + (0 if of_root else DEPTH[n]))
            index = np.arange(length + len(PARENTS))
            sees = (index < length) | np.append(np.zeros(length, bool), own[n])
            k, v = (
                np.where(
                    (index < first)[:, None], y[b, h // 2][index], x[b, h // 2][index]
                )
                for x, y in zip(exact, codes)
            )
            s = np.where(sees, 0.25 * k @ q[b, n, h], -np.inf)
            p = np.exp(s - s.max())
            out[b, n, h] = p @ v / p.sum()
        return np.abs(out - found).max()

    assert worst(False) < 2e-4
    assert worst(True) > 1e-2


def test_a_row_is_packed_and_placed():
    layer = filled()
    arrays = stored.pack_layer(layer, 1, int(LENGTHS[1]))
    empty = jax.tree.map(lambda x: x[:1], make().layers[0])
    back = stored.unpack_layer(empty, 0, arrays, int(LENGTHS[1]))
    for x, y in zip(layer.read(), jax.tree.map(jnp.asarray, back).read()):
        np.testing.assert_array_equal(x[1, :, : LENGTHS[1]], y[0, :, : LENGTHS[1]])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"block": 48}, "block=48"),
        ({"rule": RULE._replace(bits=3)}, "bits=3"),
        ({"rule": RULE._replace(group=3)}, "group=3"),
        ({"rule": RULE._replace(rank=9)}, "rank=9: use 0 to 8"),
    ],
)
def test_bad_numbers(changes, words):
    with pytest.raises(ConfigError, match=words):
        make(**changes)


def test_wide_calls_are_refused():
    q = jnp.zeros((len(LENGTHS), WINDOW + 1, 4, DIM))
    with pytest.raises(ConfigError, match="17 nodes"):
        filled().attend(q, None, None, None)
