"""The look-up of nearest keys against all distances, in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from decoding.text_lookup import nearest_keys

VOCAB, WIDTH, COUNT = 11, 6, 100
RNG = np.random.default_rng(0)
KEYS = (RNG.normal(size=(COUNT, WIDTH)) * RNG.uniform(0.5, 2, (COUNT, 1))).astype("f2")
VALUES = RNG.integers(0, VOCAB, COUNT)
QUERIES = RNG.normal(size=(2, 4, WIDTH)).astype("f4")


def brute_force(k: int, keys=KEYS, values=VALUES, queries=QUERIES) -> np.ndarray:
    """float64[B, N, V], from the distances to all keys."""
    distance = np.square(queries[..., None, :] - keys.astype(np.float64)).sum(-1)
    order = np.argsort(distance, -1, kind="stable")[..., :k]
    weights = special.softmax(-np.take_along_axis(distance, order, -1), -1)
    law = np.zeros((*queries.shape[:2], VOCAB))
    for row in np.ndindex(queries.shape[:2]):
        np.add.at(law[row], values[order[row]], weights[row])
    return law


def law(k: int, chunk: int, keys=KEYS, values=VALUES, queries=QUERIES, planted=None):
    """Ours, exponentiated; `planted` changes the pieces."""
    store = nearest_keys.pieces(keys, values, chunk)
    store = store if planted is None else planted(store)
    function = jax.jit(nearest_keys.NextTokens("tap", k, VOCAB))
    return np.exp(function(store, {"tap": jnp.asarray(queries)}))


@pytest.mark.parametrize("k", [1, 9, 64, 100, 1024])
@pytest.mark.parametrize("chunk", [7, 32, 100, 65_536])
def test_equals_brute_force(k, chunk):
    """In one piece and in several; k above a piece and above all keys."""
    np.testing.assert_allclose(law(k, chunk), brute_force(k), atol=1e-5)


def test_pieces_hold_every_key_once():
    for count, chunk in ((1, 7), (7, 7), (8, 7), (100, 32)):
        parts = nearest_keys.pieces(KEYS[:count], VALUES[:count], chunk)
        sizes = [len(part.values) for part in parts]
        assert len(sizes) == -(-count // chunk) and max(sizes) - min(sizes) <= 1
        np.testing.assert_array_equal(
            np.concatenate([p.keys for p in parts]), KEYS[:count]
        )
        found = np.concatenate([part.values for part in parts])
        np.testing.assert_array_equal(found, VALUES[:count])


def test_keys_may_stay_halves():
    """As on accelerators: the products are of float32 all the same."""

    def halves(store):
        return [part._replace(keys=part.keys.astype(jnp.float16)) for part in store]

    np.testing.assert_allclose(law(9, 32, planted=halves), brute_force(9), atol=1e-5)


def bare(store):
    """Products in the place of distances."""
    return [part._replace(norms=jnp.zeros_like(part.norms)) for part in store]


def shorter(store):
    """A piece is not merged."""
    return store[1:]


FAULTS = (bare, shorter)


@pytest.mark.parametrize("planted", FAULTS)
def test_fault_in_the_pieces(planted):
    assert np.abs(law(9, 32) - brute_force(9)).max() < 1e-5
    assert np.abs(law(9, 32, planted=planted) - brute_force(9)).max() > 0.01


def test_values_that_occur_twice_are_added():
    keys = np.asarray([[0, 0], [0, 0], [1, 0], [9, 9]], np.float16)
    values = np.asarray([3, 3, 5, 3])
    found = law(3, 4, keys, values, np.zeros((1, 1, 2), np.float32))[0, 0]
    e = np.exp(-1)
    np.testing.assert_allclose(found[[3, 5]], [2 / (2 + e), e / (2 + e)], rtol=1e-6)
    assert found.sum() == pytest.approx(1) and (found > 0).sum() == 2


def test_padding_has_no_share():
    """One key and 1,024 neighbours: the law is that key's, wherever the query is.

    Planted: padding with the score of a far key.
    """
    keys, values = np.full((1, 2), 30, np.float16), np.asarray([4])
    for queries in (np.zeros((1, 1, 2), "f4"), np.full((1, 1, 2), -40.0, "f4")):
        found = law(1024, 65_536, keys, values, queries)[0, 0]
        np.testing.assert_array_equal(found, np.eye(VOCAB)[4])
    store = nearest_keys.pieces(keys, values)
    scores, tokens = nearest_keys.nearest(store, jnp.zeros((1, 2)), 3)
    assert np.isneginf(scores[0, 1:]).all()
    assert tokens.tolist() == [[4, nearest_keys.NO_TOKEN, nearest_keys.NO_TOKEN]]
    counted = jnp.maximum(scores, -1801.0), jnp.minimum(tokens, VOCAB - 1)
    assert np.exp(nearest_keys.logprobs(*counted, VOCAB))[0, 4] < 0.9


def test_of_equal_distances_the_earlier_keys_are_taken():
    keys, values = np.zeros((6, 2), np.float16), np.arange(6)
    for chunk in (2, 6):
        found = law(4, chunk, keys, values, np.ones((1, 1, 2), np.float32))[0, 0]
        np.testing.assert_allclose(found[:6], [0.25] * 4 + [0, 0], atol=1e-6)


def test_far_queries_keep_their_distances():
    """|q|^2 of 4,096 beside distances near 1: the law of float64, to 1e-3."""
    queries = (KEYS[:8] + np.float16(0.1)).astype("f4").reshape(2, 4, WIDTH)
    shift = np.zeros(WIDTH, np.float32)
    shift[0] = 64.0
    keys = (KEYS.astype("f4") + shift).astype(np.float16)
    found = law(9, 32, keys, VALUES, queries + shift)
    np.testing.assert_allclose(
        found, brute_force(9, keys, VALUES, queries + shift), atol=1e-3
    )
