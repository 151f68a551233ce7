"""The config of draft heads: which form their arithmetic has.

The module of a head that has several forms defines a frozen `HeadConfig`; `init` puts
one beside the params, under `CONFIG`. It is a static node of the pytree: no leaf that
an optimiser or a checkpoint has, but part of what a program is compiled for. heads.json
holds it. Params of before carry none: their keys give the same, by `by_keys`.
"""

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from typing import Any

import models.heads
from models.errors import CheckpointError

CONFIG = "config"


def of(params: Mapping[str, Any], by_keys: Callable[[Any], Any]) -> Any:
    """The config beside the params, or what `by_keys` reads off params of before."""
    return params[CONFIG] if CONFIG in params else by_keys(params)


def split(params: Any) -> tuple[Any, dict[str, Any]]:
    """The params without configs, and each config by the path of what it is of."""
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
    """The params with each config where `split` found it."""
    for path, config in configs.items():
        params = _put(params, [n for n in path.split("/") if n], config)
    return params


def _put(params: Any, path: list[str], config: Any) -> Any:
    if not path:
        return {**params, CONFIG: config}
    return {**params, path[0]: _put(params[path[0]], path[1:], config)}


def to_json(configs: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What heads.json holds: by path, the head's module and the fields."""
    return {
        path: {"head": type(config).__module__.split(".")[-1], **vars(config)}
        for path, config in configs.items()
    }


def from_json(stored: Mapping[str, Any], params: Any, where: Any) -> dict[str, Any]:
    """The configs of `to_json`, held against the params that they are of.

    Raises:
        CheckpointError: an unknown head or field, or the params have another form;
            `where` names the file.
    """
    known = [info.name for info in pkgutil.iter_modules(models.heads.__path__)]
    found = {}
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
                f"{where}: the config {fields} is none of {name} heads ({error}): "
                "update decodax, or export the heads again"
            ) from error
        own = params
        for part in filter(None, path.split("/")):
            own = own.get(part, {})
        said, shown = vars(config), vars(module.by_keys(own))
        wrong = [n for n, value in said.items() if value != shown[n]]
        if wrong:
            raise CheckpointError(
                f"{where}: {wrong[0]}={said[wrong[0]]!r}, and the params have "
                f"{shown[wrong[0]]!r}: the two are of different heads, export again"
            )
        found[path] = config
    return found
