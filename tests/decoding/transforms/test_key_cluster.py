"""decoding/transforms/key_cluster.py."""

import types

import jax.numpy as jnp
import numpy as np
import pytest

from decoding.transforms import key_cluster
from models.errors import MethodError
from tests.decoding.transforms.samplers import run

CLUSTERS = (0, 0, 0, 1, 1, 4)
LOGITS = [6.0, 5.0, 4.0, 1.0, 3.0, -2.0]


def supports(clusters, logits=LOGITS) -> list[int]:
    part = key_cluster.transform(clusters, len(logits))
    return np.flatnonzero(np.isfinite(run(part, logits))).tolist()


def test_by_hand():
    assert supports(CLUSTERS) == [0, 4, 5]
    assert supports(range(6)) == [0, 1, 2, 3, 4, 5]
    assert supports([0] * 6) == [0]
    # Planted: as many tokens by rank alone are others.
    assert sorted(np.argsort(LOGITS)[-3:].tolist()) != supports(CLUSTERS)


def test_what_stays_keeps_its_value():
    out = np.asarray(run(key_cluster.transform(CLUSTERS, 6), LOGITS))
    assert out[[0, 4, 5]].tolist() == [6.0, 3.0, -2.0]


def test_forbidden_tokens_are_no_best():
    """A cluster without an allowed token has none; planted: its first would stay."""
    barred = [*LOGITS[:3], -np.inf, -np.inf, -2.0]
    assert supports(CLUSTERS, barred) == [0, 5]
    assert supports(CLUSTERS, [-np.inf, *LOGITS[1:]]) == [1, 4, 5]
    assert 0 not in supports(CLUSTERS, [-np.inf, *LOGITS[1:]])


def test_clusters_of_rows():
    """Three heaps of rows, found whole; planted: a heap of its own for a far row."""
    rng = np.random.default_rng(0)
    heaps = np.repeat(np.eye(3) * 10, 5, 0) + rng.normal(size=(15, 3))
    head = lambda params, x: x @ params
    config = types.SimpleNamespace(d_model=3)
    model = types.SimpleNamespace(head=head, config=config)
    lm = types.SimpleNamespace(model=model, params=jnp.asarray(heaps.T))
    found = key_cluster.clusters_of(lm, 3, seed=2)
    groups = {tuple(np.flatnonzero(found == c).tolist()) for c in range(3)}
    assert groups == {tuple(range(5 * i, 5 * i + 5)) for i in range(3)}
    moved = heaps.copy()
    moved[4] = heaps[5]
    lm.params = jnp.asarray(moved.T)
    assert key_cluster.clusters_of(lm, 3, seed=2)[4] == found[5] != found[4]
    with pytest.raises(MethodError, match="count=16"):
        key_cluster.clusters_of(lm, 16)


def test_a_file(tmp_path):
    np.save(tmp_path / "clusters.npy", np.array(CLUSTERS, np.int32))
    assert supports(str(tmp_path / "clusters.npy")) == supports(CLUSTERS)
    with pytest.raises(MethodError, match="is no file of numbers"):
        key_cluster.transform(str(tmp_path / "none.npy"), 6)


@pytest.mark.parametrize(
    "wrong", [(0, 1), (0, 0, 0, 1, 1, 6), (-1, *[0] * 5), (0.5,) * 6]
)
def test_refuses(wrong):
    with pytest.raises(MethodError, match="a whole number in"):
        key_cluster.transform(wrong, 6)
