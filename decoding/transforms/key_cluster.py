"""Key clusters: of the tokens whose output embeddings are alike, only the best stays.

Peng, An, Shang, *Correlation and Navigation in the Vocabulary Key Representation Space
of Language Models*, 2025, arXiv 2410.02284, section 3. The paper finds that tokens in
the cluster of the best one rank high whether they fit or not. With c(i) the cluster of
token i,

    keep i  iff  z_i = max { z_j : c(j) = c(i) }        c -> clusters

so that the second choice lies in another cluster. `clusters_of` makes the clusters by
k-means over the rows of the output embedding.

Deviations: the paper measures clusters and masks nothing; this is an experiment with
its finding. Of equal tokens of a cluster all stay.
Cost: a maximum for every cluster and a gather over V.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array

from decoding import base, vocab
from decoding.catalogue import Card
from models.errors import MethodError

CARD = Card(
    paper="In-context navigation, arXiv 2410.02284",
    guarantee=base.LAW,
    family="truncation",
    data=("clusters",),
    needs=("vocab_size",),
    examples={"clusters": (0, 0, 1, 1, 1, 2, 2, 3)},
    sources=("peng2025correlation",),
)


@struct.dataclass
class Shared:
    clusters: Array  # int32[V]


def transform(clusters: Sequence[int] | str, vocab_size: int) -> base.LogitsTransform:
    """Keep the best token of every cluster.

    Args:
        clusters: the cluster of every token, V numbers in [0, V), or the path of a .npy
            file that holds them.
        vocab_size: V, the target's.
    """
    if type(clusters) is str:
        try:
            clusters = np.load(clusters, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise MethodError(
                f"clusters={clusters!r} is no file of numbers ({error}): save what "
                "key_cluster.clusters_of returns by numpy.save"
            ) from error
    table = np.asarray(clusters)
    fits = table.shape == (vocab_size,) and table.dtype.kind in "iu"
    if not fits or table.min() < 0 or table.max() >= vocab_size:
        raise MethodError(
            f"clusters have the shape {table.shape} and type {table.dtype}: give a "
            f"whole number in [0, {vocab_size}) for each of the {vocab_size} tokens"
        )

    def init(tokens: Array, length: Array) -> base.State:
        return base.State((), Shared(jnp.asarray(table, jnp.int32)))

    def apply(state: base.State, logits: Array, aux: dict[str, Array]) -> Array:
        of = state.shared.clusters
        return vocab.keep(logits, vocab.best_of_groups_mask(logits, of))

    return base.LogitsTransform(init, apply, warper=True)


def clusters_of(lm: Any, count: int, seed: int = 0, steps: int = 25) -> np.ndarray:
    """Cluster the tokens by k-means over the rows of the output embedding.

    Args:
        lm: as `models.load` returns it. A row holds the logits that the unit vectors
            of the last state give a token.
        count: k, clusters at most; some may end empty.
        seed: of the first centres, which are tokens' rows.
        steps: of Lloyd's algorithm, at most.

    Returns:
        int32[V], for `clusters`.

    Raises:
        MethodError: `count` outside 1 to V.
    """
    size = lm.model.config.d_model
    rows = np.asarray(lm.model.head(lm.params, jnp.eye(size)[None])[0]).T
    rows = rows.astype(np.float32)
    if not 1 <= count <= len(rows):
        raise MethodError(f"count={count} clusters: use 1 to {len(rows)}")
    rng = np.random.default_rng(seed)
    centres = rows[rng.choice(len(rows), count, replace=False)]
    label = np.full(len(rows), -1)
    for _ in range(steps):
        before = label
        label = np.argmin((centres**2).sum(-1) - 2 * rows @ centres.T, -1)
        if (label == before).all():
            break
        sizes = np.bincount(label, minlength=count)
        sums = np.zeros_like(centres)
        np.add.at(sums, label, rows)
        full = sizes > 0
        centres[full] = sums[full] / sizes[full, None]
    return label.astype(np.int32)
