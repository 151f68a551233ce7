"""Load recipes over the defaults, override their fields, and compare configs."""

import json
import runpy
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags
from ml_collections import ConfigDict, config_flags

from experiments import stage
from experiments.recipes import defaults
from models.errors import ConfigError, hint


def head(name: str, target: str) -> ConfigDict:
    """Load the recipe `configs/heads/<name>.py` for a target."""
    folder = Path(__file__).parents[2] / "configs" / "heads"
    return load(f"{folder / name}.py:{target}")


def load(path: str | Path) -> ConfigDict:
    """Load the recipe at `path` over the defaults.

    A name behind a colon is the argument of its get_config: `heads/medusa.py:llama3_8b`
    is for that target. A recipe with a `method` and no `methods` is evaluated under its
    file's name, beside plain decoding. A recipe of another stage than `evaluate` takes
    no defaults.
    """
    targets: list[str] = []
    if not Path(path).is_file() and ".py:" in str(path):
        path, _, name = str(path).rpartition(":")
        targets = [name]
    path = Path(path)
    if not path.is_file():
        beside = sorted(p.name for p in path.parent.glob("*.py") if p.stem[0] != "_")
        raise ConfigError(f"--config={path}: no such file; beside it are {beside}")
    try:
        make = runpy.run_path(str(path)).get("get_config")
        recipe = make(*targets) if make else None
    except (Exception, SystemExit) as error:  # a recipe is a program
        raise ConfigError(f"{path}: {type(error).__name__}: {error}") from error
    if make is None:
        raise ConfigError(
            f"{path} has no function get_config: see configs/quickstart.py"
        )
    if not isinstance(recipe, ConfigDict):
        raise ConfigError(
            f"{path}: get_config gives a {type(recipe).__name__}, not a ConfigDict"
        )
    name = recipe.get("stage", "evaluate")
    try:
        stage.check(name)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    if name != "evaluate":
        return recipe
    config = defaults.get_config()
    with config.unlocked():
        if "method" in recipe and "methods" not in recipe:
            config.methods = (
                ("plain", path.stem) if path.stem != "plain" else ("plain",)
            )
        for name, value in recipe.items():
            try:
                config[name] = value
            except TypeError as error:
                raise ConfigError(
                    f"{path}: config.{name}={value!r}: {error}"
                ) from error
    return config


# Errors of parsing a value as Python, in absl and ml_collections.
REFUSED = (
    flags.Error,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
)


def override(config: ConfigDict, arguments: Sequence[str]) -> ConfigDict:
    """Apply `--config.field=value` arguments; ConfigError for an unknown field."""
    for argument in arguments:
        name, sep, _ = argument.removeprefix("--config.").partition("=")
        if not argument.startswith("--config.") or not sep:
            raise ConfigError(
                f"argument {argument!r}: write --config.field=value after --config=FILE"
            )
        _check(config, name)
    values = flags.FlagValues()
    argv = ["run", *arguments]
    try:
        config_flags.DEFINE_config_dict(
            "config", config, flag_values=values, sys_argv=argv
        )
        values(argv)
    except REFUSED as error:
        raise ConfigError(
            f"overrides {list(arguments)}: {type(error).__name__}: {error}"
        ) from error
    return values["config"].value


def _check(config: ConfigDict, name: str) -> None:
    """Raise ConfigError unless the dotted `name` is a field."""
    node: Any = config
    parts = name.split(".")
    for i, part in enumerate(parts):
        if isinstance(node, ConfigDict) and part in node:
            node = node[part]
            continue
        fields = sorted(node.keys()) if isinstance(node, ConfigDict) else []
        path, close = ".".join(["config", *parts[:i]]), hint(part, fields)
        if not close:  # perhaps its group was forgotten
            last = [n for n in flat(config.to_dict()) if n.endswith(f".{parts[-1]}")]
            close = f" (did you mean {last[0]!r}?)" if last else ""
        raise ConfigError(
            f"{path} has no field {part!r}{close}; --list_fields prints all"
        )


NO_CONFIG = "no --config: give one, e.g. --config=configs/quickstart.py"


def resolve(arguments: Sequence[str]) -> tuple[ConfigDict, list[str]]:
    """Return the config of a command line, and its other arguments."""
    files = [a for a in arguments if a.startswith("--config=")]
    if not files or files == ["--config="]:
        raise ConfigError(NO_CONFIG)
    if len(files) > 1:
        raise ConfigError(f"several --config=FILE: give one of {files}")
    overrides = [a for a in arguments if a.startswith("--config.")]
    rest = [a for a in arguments if a not in files and a not in overrides]
    config = load(files[0].removeprefix("--config="))
    return override(config, overrides), rest


def plain(config: Any) -> Any:
    """Convert a config to JSON's types: tuples become lists."""
    if isinstance(config, ConfigDict):
        config = config.to_dict()
    return json.loads(json.dumps(config))


def flat(config: Any) -> dict[str, Any]:
    """Flatten nested mappings: dotted name -> leaf."""
    return dict(_leaves(config, ""))


def _leaves(config: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield (dotted name, leaf) of nested mappings."""
    if isinstance(config, Mapping) and config:
        for name, value in config.items():
            yield from _leaves(value, f"{prefix}{name}.")
    else:
        yield prefix[:-1], config


def diff(old: Any, new: Any, free: Sequence[str] = ()) -> list[str]:
    """List differences as `field: old -> new`, without the fields in `free`."""
    a, b = flat(old), flat(new)
    lines = []
    for name in sorted({*a, *b}):
        if name.split(".")[0] in free or a.get(name) == b.get(name):
            continue
        left, right = (json.dumps(x.get(name, "(absent)")) for x in (a, b))
        lines.append(f"{name}: {left} -> {right}")
    return lines
