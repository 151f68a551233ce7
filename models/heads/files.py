"""Draft heads on disk: safetensors, and a config.json that says what they are for."""

import hashlib
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.flax import load_file, save_file

from models import sharding
from models.checkpoints import hf, tensors
from models.errors import CheckpointError

WEIGHTS, CONFIG = "heads.safetensors", "heads.json"


def fingerprint(params: Any) -> str:
    """Names a target: a hash of a sample of every one of its weights."""
    digest = hashlib.sha256()
    for path, x in jax.tree_util.tree_leaves_with_path(params):
        flat = sharding.fetch(jnp.asarray(x)).reshape(-1)
        step = max(1, flat.size // 64)
        digest.update(jax.tree_util.keystr(path).encode())
        digest.update(np.asarray(flat[::step][:64], np.float32).tobytes())
    return digest.hexdigest()[:16]


def save(folder: str | pathlib.Path, params: Any, about: dict[str, Any]) -> None:
    """Write the params in their dtypes, and `about` beside them."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    flat = {name: jnp.asarray(x) for name, x in hf.flatten(params).items()}
    save_file(flat, str(folder / WEIGHTS))
    tensors.write_json(folder / CONFIG, about)


def load(folder: str | pathlib.Path, target: Any = None, dtype: Any = None) -> Any:
    """The params of `folder`, nested as they were; floating ones in `dtype`.

    With `target`, a loaded model, heads of another target are refused.
    """
    folder = pathlib.Path(folder)
    if not (folder / WEIGHTS).exists():
        raise CheckpointError(
            f"{folder} holds no {WEIGHTS}: give the export folder of a head training"
        )
    about = describe(folder)
    if target is not None and about.get("fingerprint"):
        own = fingerprint(target.params)
        if own != about["fingerprint"]:
            raise CheckpointError(
                f"{folder} holds heads of the target {about.get('target')!r} "
                f"({about['fingerprint']}), this one is {own}: train heads for it"
            )
    if dtype is None and target is not None:
        dtype = jax.tree.leaves(target.params)[0].dtype
    flat = {
        name: x.astype(dtype) if dtype and jnp.issubdtype(x.dtype, jnp.floating) else x
        for name, x in load_file(str(folder / WEIGHTS)).items()
    }
    return hf.unflatten(flat)


def describe(folder: str | pathlib.Path) -> dict[str, Any]:
    """What heads.json says."""
    path = pathlib.Path(folder) / CONFIG
    return tensors.read_json(path) if path.exists() else {}
