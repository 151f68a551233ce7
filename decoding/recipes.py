"""Resolve a name such as "token_recycling" to its recipe or its method file."""

import importlib
import pkgutil
import runpy
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from decoding import catalogue
from decoding.catalogue import Spec
from decoding.method import ROLES, Method
from models.errors import MethodError

# Folders of configs/ whose recipes may name a method, in the order of the search.
FOLDERS = ("methods", "heads")
# Folders of decoding/ whose files are methods by themselves, searched after those.
FILES = ("drafters", "search", "diffusion", "caches", "exits", "transforms")


def method(name: str) -> Method:
    """The method that `name` means; see `config`."""
    return Method.from_config(config(name).method)


def config(name: str) -> ConfigDict:
    """The recipe that `name` means.

    Args:
        name: searched in this order: `configs/methods/<name>.py`,
            `configs/heads/<name>.py`, then a method file of `FILES` with its factory's
            defaults. `heads/<name>` and `drafters/<name>` name the folder as well. A
            name that ends in .py is the path of any recipe.

    Raises:
        MethodError: there is no such recipe or file, the recipe names no part of a
            method, or the file's factory has arguments without a default.
    """
    if name.endswith(".py"):
        return _checked(_read(Path(name)), name)
    folder, _, stem = name.rpartition("/")
    for package in [folder] if folder else FOLDERS:
        if package in FOLDERS and stem in _stems(package):
            return _checked(_config(package, stem), f"configs/{package}/{stem}.py")
    for package in [folder] if folder else FILES:
        if package in FILES and f"{package}/{stem}" in _files(package):
            return ConfigDict({"method": _alone(f"{package}/{stem}")})
    raise MethodError(
        f"no recipe {name!r} in configs/; there are {names()}. A file of decoding/ in "
        f"{FILES} goes by its name, a recipe outside configs/ by its path, with .py"
    )


def names() -> list[str]:
    """Names of the recipes in `FOLDERS` that name a method."""
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


def _read(path: Path) -> Any:
    """The config of a recipe anywhere."""
    if not path.is_file():
        raise MethodError(f"no recipe {path}: there is no such file")
    try:
        make = runpy.run_path(str(path)).get("get_config")
        found = make() if make else None
    except (Exception, SystemExit) as error:  # a recipe is a program
        raise MethodError(f"{path}: {type(error).__name__}: {error}") from error
    if type(found) is not ConfigDict:
        raise MethodError(f"{path}: write a get_config() that returns a ConfigDict")
    return found


def _checked(config: Any, where: str) -> Any:
    """The config, which names a part of a method."""
    if _names_a_part(config):
        return config
    raise MethodError(
        f"the recipe {where} names no method, so that nothing can be decoded with it; "
        f"recipes that do: {names()}"
    )


def _names_a_part(config: Any) -> bool:
    return bool(set(config.get("method", ())) & {*ROLES, "transforms"})


def _files(folder: str) -> list[str]:
    return catalogue.names(folder) if folder in catalogue.FACTORIES else []


def _alone(name: str) -> dict[str, Any]:
    """The method of one file at its factory's defaults, over plain decoding."""
    spec, folder = Spec(name), name.split("/")[0]
    if asked := spec.required:
        example = ", ".join(f"{argument}=..." for argument in asked)
        raise MethodError(
            f"{name} has no default for {asked}: put Spec({name!r}, {example}) into a "
            "Method"
        )
    if folder == "transforms":
        return {"drafter": None, "transforms": [name]}
    role = next(role for role, source in ROLES.items() if source == folder)
    return {role: name}
