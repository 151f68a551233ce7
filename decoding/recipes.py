"""Resolve a name such as "token_recycling" to its recipe or its method file."""

import importlib
import pkgutil
import runpy
from importlib import metadata
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from decoding import catalogue
from decoding.catalogue import Spec
from decoding.method import ROLES, Method
from models.errors import MethodError, hint

# Folders of configs/ whose recipes may name a method, in the order of the search.
FOLDERS = ("methods", "heads")
# Folders of decoding/ whose files are methods by themselves, searched after `FOLDERS`.
FILES = ("drafters", "search", "diffusion", "caches", "exits", "transforms")

GROUP = "decodax.methods"  # of entry points: `my_sampler = "my_package.my_file"`


def method(name: str) -> Method:
    """Build the method that `name` resolves to; see `config`."""
    return Method.from_config(config(name).method)


def config(name: str) -> ConfigDict:
    """Load the recipe that `name` resolves to.

    Args:
        name: searched in this order: `configs/methods/<name>.py`,
            `configs/heads/<name>.py`, then a method file of `FILES` with its factory's
            defaults. `heads/<name>` and `drafters/<name>` search that folder only. Then
            an entry point of an installed package. A name that ends in .py is the path
            of any recipe; "package.module" is a module with one factory.

    Raises:
        MethodError: no such recipe or file exists, the recipe names no part of a
            method, or the file's factory has arguments without a default.
    """
    if name.endswith(".py"):
        return _checked(_read(Path(name)), name)
    if catalogue.is_outside(name):
        return ConfigDict({"method": _alone(name)})
    folder, _, stem = name.rpartition("/")
    for package in [folder] if folder else FOLDERS:
        if package in FOLDERS and stem in _stems(package):
            return _checked(_config(package, stem), f"configs/{package}/{stem}.py")
    for package in [folder] if folder else FILES:
        if package in FILES and f"{package}/{stem}" in _files(package):
            return ConfigDict({"method": _alone(f"{package}/{stem}")})
    if name in (modules := installed()):
        return ConfigDict({"method": _alone(modules[name])})
    files = [spec for package in FILES for spec in _files(package)]
    known = [*names(), *modules, *(spec.rpartition("/")[2] for spec in files)]
    near = hint(stem, known)
    others = "" if near else f"; there are {names()}"
    raise MethodError(
        f"no recipe {name!r} in configs/{near}{others}. "
        f"Give the name of a file of decoding/ in {FILES}, a module with a factory, or "
        "the path of another recipe, with .py"
    )


def names() -> list[str]:
    """List the recipes in `FOLDERS` that name a method."""
    stems = {
        stem
        for package in FOLDERS
        for stem in _stems(package)
        if _names_a_part(_config(package, stem))
    }
    return sorted(stems)


def _stems(package: str) -> list[str]:
    folder = importlib.import_module(f"configs.{package}").__path__
    return [info.name for info in pkgutil.iter_modules(folder)]


def _config(package: str, stem: str) -> Any:
    return importlib.import_module(f"configs.{package}.{stem}").get_config()


def _read(path: Path) -> Any:
    """Run the recipe at `path` and return its config."""
    if not path.is_file():
        raise MethodError(f"no recipe {path}: no such file; check the path")
    try:
        make = runpy.run_path(str(path)).get("get_config")
        config = make() if make else None
    except (Exception, SystemExit) as error:  # a recipe is a program
        raise MethodError(f"{path}: {type(error).__name__}: {error}") from error
    if type(config) is not ConfigDict:
        raise MethodError(f"{path}: write a get_config() that returns a ConfigDict")
    return config


def _checked(config: Any, where: str) -> Any:
    """Return the config, if it names a part of a method."""
    if _names_a_part(config):
        return config
    raise MethodError(
        f"the recipe {where} names no method, so it cannot decode; recipes with a "
        f"method: {names()}"
    )


def _names_a_part(config: Any) -> bool:
    return bool(set(config.get("method", ())) & {*ROLES, "transforms", "schedule"})


def _files(folder: str) -> list[str]:
    return catalogue.names(folder) if folder in catalogue.FACTORIES else []


def _alone(name: str) -> dict[str, Any]:
    """Build the config of one file at its factory's defaults, over plain decoding."""
    spec = Spec(name)
    folder = spec.folder
    if missing := spec.required:
        example = ", ".join(f"{argument}=..." for argument in missing)
        raise MethodError(
            f"{name} has no default for {missing}: put Spec({name!r}, {example}) into "
            "a Method"
        )
    if folder in ("topologies", "verifiers"):
        raise MethodError(
            f"{name} is one of the {folder}: put Spec({name!r}) into a Method, with a "
            "drafter"
        )
    if folder == "transforms":
        return {"drafter": None, "transforms": [name]}
    if folder == "diffusion":
        return {"drafter": None, "schedule": [name]}
    role = next(role for role, source in ROLES.items() if source == folder)
    return {role: name}


def installed() -> dict[str, str]:
    """Map the names of installed packages' entry points to their modules."""
    points = metadata.entry_points(group=GROUP)
    return {point.name: point.value for point in points}
