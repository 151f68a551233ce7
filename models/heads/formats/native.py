"""Draft heads on disk: safetensors, and heads.json with target, form and method."""

import hashlib
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.flax import load_file, save_file

from models import packaged, storage
from models.checkpoints import hf, hub, tensors
from models.distributed import sharding
from models.errors import CheckpointError, hint
from models.heads.modules import head_config

WEIGHTS, CONFIG = "heads.safetensors", "heads.json"


def locate(name: str | os.PathLike) -> storage.Path:
    """Return the folder of packaged heads, of heads at a path, or of a download."""
    is_packaged = str(name) in packaged.HEADS
    path = packaged.folder(str(name)) if is_packaged else hub.local(name)
    if not (path / WEIGHTS).exists():
        known = list(packaged.HEADS)
        raise CheckpointError(
            f"{name} holds no {WEIGHTS}{hint(name, known)}: give the export folder of "
            f"a head training, a repository with its files, or one of {known}; "
            "models.heads.formats.published reads other layouts"
        )
    return path


def fingerprint(params: Any) -> str:
    """Hash a sample of every weight: the name of a target, 16 hex digits."""
    digest = hashlib.sha256()
    for path, x in jax.tree_util.tree_leaves_with_path(params):
        flat = sharding.fetch(jnp.asarray(x)).reshape(-1)
        step = max(1, flat.size // 64)
        digest.update(jax.tree_util.keystr(path).encode())
        digest.update(np.asarray(flat[::step][:64], np.float32).tobytes())
    return digest.hexdigest()[:16]


def save(
    folder: str | os.PathLike, params: Any, about: dict[str, Any], card: str = ""
) -> None:
    """Write the params in their dtypes, and beside them heads.json and README.md.

    heads.json holds `about` and the params' configs; README.md holds `card`.
    """
    folder = storage.path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    params, configs = head_config.split(params)
    flat = {name: jnp.asarray(x) for name, x in hf.flatten(params).items()}
    with storage.new_file(folder / WEIGHTS) as part:
        save_file(flat, str(part))
    if configs:
        about = {**about, "configs": head_config.to_json(configs)}
    tensors.write_json(folder / CONFIG, about)
    if card:
        storage.write(folder / "README.md", card)


def load(folder: str | os.PathLike, target: Any = None, dtype: Any = None) -> Any:
    """Load the params of `folder` with their nesting and configs; floats in `dtype`.

    `folder` may be the name of packaged heads, or a repository of the hub. With
    `target`, a loaded model, heads of another target are refused, and its dtype is the
    default.
    """
    folder = locate(folder)
    about = describe(folder)
    if target is not None and about.get("fingerprint"):
        actual = fingerprint(target.params)
        if actual != about["fingerprint"]:
            raise CheckpointError(
                f"{folder} holds heads for the target {about.get('target')!r} "
                f"({about['fingerprint']}), this one is {actual}: train heads for it"
            )
    if dtype is None and target is not None:
        dtype = jax.tree.leaves(target.params)[0].dtype
    with storage.local_copy(folder / WEIGHTS) as file:
        stored = load_file(str(file))
    flat = {
        name: x.astype(dtype) if dtype and jnp.issubdtype(x.dtype, jnp.floating) else x
        for name, x in stored.items()
    }
    params = hf.unflatten(flat)
    written = about.get("configs", {})
    configs = head_config.from_json(written, params, folder / CONFIG)
    return head_config.joined(params, configs)


def describe(folder: str | os.PathLike) -> dict[str, Any]:
    """Read heads.json; {} where there is none."""
    path = storage.path(folder) / CONFIG
    return tensors.read_json(path) if path.exists() else {}


def method(name: str | os.PathLike) -> dict[str, Any]:
    """Return the decoding method of a folder's heads: the names of its parts."""
    spec = describe(locate(name)).get("method")
    if not spec:
        raise CheckpointError(
            f"{name}/{CONFIG} names no method: name the recipe that trained the heads"
        )
    return spec


def decode_with(folder: str | os.PathLike, method: dict[str, Any]) -> None:
    """Write another method into heads.json."""
    about = {**describe(folder), "method": method}
    tensors.write_json(storage.path(folder) / CONFIG, about)
