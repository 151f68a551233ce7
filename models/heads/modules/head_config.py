"""The config of draft heads: the form of their arithmetic.

The module of a head that has several forms defines a frozen `HeadConfig`; `init` puts
one beside the params, under `CONFIG`. It is a static node of the pytree: optimisers and
checkpoints see no leaf, and jit compiles a program per config. heads.json holds it.
Older params carry none; `by_keys` derives it from their keys.
"""

import dataclasses
import importlib
import pkgutil
from collections.abc import Callable, Mapping
from typing import Any

import models.heads
from models.errors import CheckpointError

CONFIG = "config"


def unseen(default: Any) -> Any:
    """Return a field of a `HeadConfig` that the params' keys do not show."""
    return dataclasses.field(default=default, metadata={"seen": False})


def of(params: Mapping[str, Any], by_keys: Callable[[Any], Any]) -> Any:
    """Return the config beside the params, or `by_keys(params)` where it is absent."""
    return params[CONFIG] if CONFIG in params else by_keys(params)


def split(params: Any) -> tuple[Any, dict[str, Any]]:
    """Split configs off the params: return bare params, and the configs by path."""
    configs: dict[str, Any] = {}

    def bare(tree: Any, path: str) -> Any:
        if not isinstance(tree, dict):
            return tree
        if CONFIG in tree:
            configs[path] = tree[CONFIG]
        below = lambda name: f"{path}/{name}".removeprefix("/")
        return {n: bare(x, below(n)) for n, x in tree.items() if n != CONFIG}

    return bare(params, ""), configs


def joined(params: Any, configs: Mapping[str, Any]) -> Any:
    """Put each config back at its path in the params: the inverse of `split`."""
    for path, config in configs.items():
        params = _put(params, [n for n in path.split("/") if n], config)
    return params


def _put(params: Any, path: list[str], config: Any) -> Any:
    if not path:
        return {**params, CONFIG: config}
    return {**params, path[0]: _put(params[path[0]], path[1:], config)}


def to_json(configs: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Convert configs to JSON: by path, the head's module and the fields."""
    return {
        path: {"head": type(config).__module__.split(".")[-1], **vars(config)}
        for path, config in configs.items()
    }


def from_json(stored: Mapping[str, Any], params: Any, where: Any) -> dict[str, Any]:
    """Rebuild the configs of `to_json`, and compare each with its params.

    Args:
        stored: the JSON of `to_json`.
        params: the params, without configs.
        where: the file, for errors.

    Raises:
        CheckpointError: a head or field is unknown, or the params have another form.
    """
    known = [info.name for info in pkgutil.iter_modules(models.heads.__path__)]
    configs = {}
    for path, fields in stored.items():
        fields = dict(fields)
        name = fields.pop("head", None)
        if name not in known:
            raise CheckpointError(f"{where}: head={name!r} is none of {known}")
        module = importlib.import_module(f"models.heads.{name}")
        try:
            config = module.HeadConfig(**fields)
        except (AttributeError, TypeError) as error:
            raise CheckpointError(
                f"{where}: the config {fields} does not fit {name} heads ({error}): "
                "update decodax, or export the heads again"
            ) from error
        subtree = params
        for part in filter(None, path.split("/")):
            subtree = subtree.get(part, {})
        declared, derived = vars(config), vars(module.by_keys(subtree))
        seen = [f.name for f in dataclasses.fields(config) if f.metadata.get("seen", 1)]
        wrong = [n for n in seen if declared[n] != derived[n]]
        if wrong:
            raise CheckpointError(
                f"{where}: {wrong[0]}={declared[wrong[0]]!r}, and the params have "
                f"{derived[wrong[0]]!r}: they belong to different heads, export again"
            )
        configs[path] = config
    return configs
