"""Recipes of configs/ that a method is known by, such as "token_recycling"."""

import importlib
import pkgutil
from typing import Any

from decoding.method import ROLES, Method
from models.errors import MethodError

# Folders of configs/ whose recipes may name a method, in the order of the search.
FOLDERS = ("methods", "heads")


def config(name: str) -> Any:
    """The `ConfigDict` of `configs/methods/<name>.py` or `configs/heads/<name>.py`.

    `heads/<name>` names the second where both exist.

    Raises:
        MethodError: there is no such recipe, or it names no part of a method.
    """
    folder, _, stem = name.rpartition("/")
    for package in [folder] if folder else FOLDERS:
        if package in FOLDERS and stem in _stems(package):
            found = _config(package, stem)
            if _names_a_part(found):
                return found
            raise MethodError(
                f"the recipe configs/{package}/{stem}.py names no method, so that "
                f"nothing can be decoded with it; recipes that do: {names()}"
            )
    raise MethodError(f"no recipe {name!r} in configs/; there are {names()}")


def method(name: str) -> Method:
    """The method of a recipe; see `config`."""
    return Method.from_config(config(name).method)


def names() -> list[str]:
    """Names of the recipes that name one method."""
    found = {
        stem
        for package in FOLDERS
        for stem in _stems(package)
        if _names_a_part(_config(package, stem))
    }
    return sorted(found)


def _stems(package: str) -> list[str]:
    folder = importlib.import_module(f"configs.{package}").__path__
    return [info.name for info in pkgutil.iter_modules(folder)]


def _config(package: str, stem: str) -> Any:
    return importlib.import_module(f"configs.{package}.{stem}").get_config()


def _names_a_part(config: Any) -> bool:
    return bool(set(config.get("method", ())) & {*ROLES, "transforms"})
