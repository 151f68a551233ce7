"""Draft heads on disk: safetensors, and a config.json that says what they are for."""

import hashlib
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.flax import load_file, save_file

from models import packaged
from models.checkpoints import hf, tensors
from models.distributed import sharding
from models.errors import CheckpointError
from models.heads.modules import head_config

WEIGHTS, CONFIG = "heads.safetensors", "heads.json"


def locate(name: str | pathlib.Path) -> pathlib.Path:
    """The folder of packaged or given heads."""
    path = pathlib.Path(name)
    if str(name) in packaged.HEADS:
        path = packaged.folder(str(name))
    if not (path / WEIGHTS).exists():
        raise CheckpointError(
            f"{name} holds no {WEIGHTS}: give the export folder of a head training, or "
            f"one of {list(packaged.HEADS)}"
        )
    return path


def fingerprint(params: Any) -> str:
    """Names a target: a hash of a sample of every one of its weights."""
    digest = hashlib.sha256()
    for path, x in jax.tree_util.tree_leaves_with_path(params):
        flat = sharding.fetch(jnp.asarray(x)).reshape(-1)
        step = max(1, flat.size // 64)
        digest.update(jax.tree_util.keystr(path).encode())
        digest.update(np.asarray(flat[::step][:64], np.float32).tobytes())
    return digest.hexdigest()[:16]


def save(
    folder: str | pathlib.Path, params: Any, about: dict[str, Any], card: str = ""
) -> None:
    """Write the params in their dtypes; their configs, `about` and the card beside."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    params, configs = head_config.split(params)
    flat = {name: jnp.asarray(x) for name, x in hf.flatten(params).items()}
    save_file(flat, str(folder / WEIGHTS))
    if configs:
        about = {**about, "configs": head_config.to_json(configs)}
    tensors.write_json(folder / CONFIG, about)
    if card:
        (folder / "README.md").write_text(card)


def load(folder: str | pathlib.Path, target: Any = None, dtype: Any = None) -> Any:
    """The params of `folder`, nested as they were, configs too; floats in `dtype`.

    `folder` may be the name of packaged heads. With `target`, a loaded model, heads of
    another target are refused.
    """
    folder = locate(folder)
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
    params = hf.unflatten(flat)
    stored = about.get("configs", {})
    configs = head_config.from_json(stored, params, folder / CONFIG)
    return head_config.joined(params, configs)


def describe(folder: str | pathlib.Path) -> dict[str, Any]:
    """What heads.json says."""
    path = pathlib.Path(folder) / CONFIG
    return tensors.read_json(path) if path.exists() else {}


def method(name: str | pathlib.Path) -> dict[str, Any]:
    """How the heads of a folder are decoded with: drafter, tree, verifier by name."""
    found = describe(locate(name)).get("method")
    if not found:
        raise CheckpointError(
            f"{name}/{CONFIG} names no method: name the recipe that the heads are of"
        )
    return found


def decode_with(folder: str | pathlib.Path, method: dict[str, Any]) -> None:
    """Let heads.json name another method."""
    about = {**describe(folder), "method": method}
    tensors.write_json(pathlib.Path(folder) / CONFIG, about)
