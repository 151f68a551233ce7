"""A datastore of a model's states and the tokens that followed them, on disk.

A directory of `keys.npy` (float16[N, D]), `values.npy` (int32[N]) and `meta.json`: the
model's name, the checksum and dtype of its weights, the tap of the keys, N.
`python -m experiments.knn_datastore` makes one.
"""

import os
from typing import Any, NamedTuple

import jax
import numpy as np

from decoding import base
from decoding.text_lookup import array_files, nearest_keys
from models import storage
from models.base import FFN_INPUT
from models.checkpoints import tensors
from models.errors import MethodError
from models.heads.formats import native

KEYS, VALUES, META = "keys.npy", "values.npy", "meta.json"
NAME = "knn"
COMMAND = "python -m experiments.knn_datastore --model=M --data=FILE --out=DIRECTORY"


class Store(NamedTuple):
    """What `generate` takes of a datastore, and its meta.json."""

    drafts: dict[str, Any]
    streams: dict[str, base.Derived]
    about: dict[str, Any]


def save(
    directory: str | os.PathLike, lm: Any, keys: Any, values: Any, name: str
) -> dict[str, Any]:
    """Write a datastore; return the contents of its meta.json.

    Args:
        directory: created if missing.
        lm: the model whose states the keys are.
        keys: [N, D], its `FFN_INPUT`.
        values: int[N], the tokens that followed.
        name: the model's.

    Raises:
        MethodError: there are no keys, or one exceeds float16.
    """
    with np.errstate(over="ignore"):
        keys = np.asarray(keys, np.float16)
    if not len(keys):
        raise MethodError(
            "the datastore would be empty: give it a text of at least two tokens"
        )
    if not np.isfinite(keys).all():
        raise MethodError(
            f"states of {name} exceed 65504, the most that float16 holds: they cannot "
            "be keys"
        )
    about = {
        "model": name,
        "fingerprint": native.fingerprint(lm.params),
        "dtype": str(jax.tree.leaves(lm.params)[0].dtype),
        "tap": FFN_INPUT,
        "tokens": len(keys),
    }
    path = storage.path(directory)
    array_files.write(path / KEYS, keys)
    array_files.write(path / VALUES, np.asarray(values, np.int32))
    tensors.write_json(path / META, about)
    return about


def load(directory: str | os.PathLike, lm: Any, k: int = 1024) -> Store:
    """Load a datastore for `lm`, onto the device.

    `generate(lm, prompts, transforms=[Spec("transforms/knn_lm")], drafts=store.drafts,
    streams=store.streams)` decodes with it.

    Args:
        directory: made by `experiments.knn_datastore`.
        lm: the model that made it, as `models.load` returns it.
        k: neighbours of a query; the paper's 1,024.

    Raises:
        MethodError: a file is missing or unreadable, the files do not match, the keys
            are another model's, or `k` is below 1.
    """
    if k < 1:
        raise MethodError(f"k={k}: use at least 1 neighbour (the paper's is 1024)")
    path = storage.path(directory)
    keys, values = (array_files.read(path / name, COMMAND) for name in (KEYS, VALUES))
    if not (path / META).exists():
        raise MethodError(f"no datastore file {path / META}: build one with {COMMAND}")
    about = tensors.read_json(path / META)
    actual = native.fingerprint(lm.params)
    if actual != about.get("fingerprint"):
        raise MethodError(
            f"{directory} holds states of {about.get('model')!r} in "
            f"{about.get('dtype')}, whose weights have the checksum "
            f"{about.get('fingerprint')}; this model's is {actual}: load that model in "
            "that dtype, or build a datastore for this one"
        )
    vocab_size = lm.model.config.vocab_size
    wanted = (about.get("tokens"), lm.model.config.d_model)
    if keys.shape != wanted or values.shape != wanted[:1] or not len(keys):
        raise MethodError(
            f"{directory}: keys of shape {keys.shape} and values of shape "
            f"{values.shape}, where {META} has {wanted}: build the datastore again"
        )
    if keys.dtype != np.float16 or values.dtype != np.int32:
        raise MethodError(
            f"{directory}: keys of type {keys.dtype} and values of type "
            f"{values.dtype}, not float16 and int32: build the datastore again"
        )
    if values.min() < 0 or values.max() >= vocab_size:
        raise MethodError(
            f"{directory}: values from {values.min()} to {values.max()}, outside the "
            f"vocabulary of {vocab_size}: build the datastore again"
        )
    tap = about.get("tap")
    stream = base.Derived((tap,), NAME, nearest_keys.NextTokens(tap, k, vocab_size))
    return Store({NAME: nearest_keys.pieces(keys, values)}, {NAME: stream}, about)
