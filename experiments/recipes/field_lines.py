"""Find the line that explains a recipe's field: the comment at its assignment.

    c.rate = 0.1  # peak learning rate
    # Pairs (more, less) of methods whose tokens a call are compared.
    c.directions = ()
    c.gpu = {"page": 256}

A comment stands at the end of the assignment or directly above it; the same holds for
the keys of a dict. It is looked for in the recipe, in the modules of `configs` that it
imports, and in `defaults.py`, whose fields recipes of the stage `evaluate` have. A
function named after a group of fields (`train()`) returns that group, unless its fields
are merged into the recipe (`c.update(decoding())`). A field without a comment has that
of the innermost group that holds it, such as arguments of a method. A field that is a
whole recipe has that recipe's lines.
"""

import ast
import functools
import io
import pathlib
import tokenize
from collections.abc import Iterator
from typing import Any

from ml_collections import ConfigDict

from experiments.recipes import defaults, settings

ROOT = pathlib.Path(__file__).parents[2]
Comments = dict[int, tuple[str, bool]]  # line -> text, whether it has its own line


def lines(path: str | pathlib.Path, config: ConfigDict) -> dict[str, str]:
    """Return the line of every field of the recipe at `path`; "" where it has none.

    Keys are dotted names, as on the command line.
    """
    file = str(path)
    if not pathlib.Path(file).is_file():
        file = file.rpartition(":")[0]
    sources = [explained(source) for source in _sources(pathlib.Path(file).resolve())]
    found = {}
    for name in settings.flat(config.to_dict()):
        first, _, rest = name.partition(".")
        inner = config[first]
        is_recipe = isinstance(inner, ConfigDict) and "stage" in inner
        found[name] = _line(rest if is_recipe else name, sources)
    return found


def _line(name: str, sources: list[dict[str, str]]) -> str:
    """Look a name up, then the groups that hold it, innermost first."""
    parts = name.split(".")
    for size in range(len(parts), 0, -1):
        for source in sources:
            if text := source.get(".".join(parts[:size])):
                return text
    return ""


def _sources(file: pathlib.Path) -> list[pathlib.Path]:
    """List a recipe, the recipes that it imports, nearest first, and the defaults."""
    order = [file]
    for source in order:  # grows as it is read
        for node in ast.parse(source.read_text()).body:
            if isinstance(node, ast.ImportFrom) and node.module:
                if node.module.split(".")[0] != "configs":
                    continue
                folder = ROOT.joinpath(*node.module.split("."))
                for alias in node.names:
                    imported = folder / f"{alias.name}.py"
                    if imported.is_file() and imported not in order:
                        order.append(imported)
    return [*order, pathlib.Path(defaults.__file__)]


@functools.cache
def explained(file: pathlib.Path) -> dict[str, str]:
    """Map the dotted fields that a file assigns to their comments."""
    text = file.read_text()
    comments, tree = _comments(text), ast.parse(text)
    groups = {*_groups(tree)}
    fields: dict[str, str] = {}
    for top in tree.body:
        for node in ast.walk(top):
            if not isinstance(node, ast.Assign):
                continue
            target = ast.unparse(node.targets[0])
            _, dot, name = target.partition(".")
            if not dot or not isinstance(node.targets[0], ast.Attribute):
                name = ""  # a constant: its keys may be fields
            if isinstance(top, ast.FunctionDef) and top.name in groups and name:
                name = f"{top.name}.{name}"
            if name:
                fields[name] = _comment(node, comments) or fields.get(name, "")
            for key, comment in _keys(node.value, comments):
                full = f"{name}.{key}" if name else key
                fields[full] = comment or fields.get(full, "")
    return {name: comment for name, comment in fields.items() if comment}


def _groups(tree: ast.Module) -> Iterator[str]:
    """Yield the functions that return a group of fields of their own name."""
    merged = {
        ast.unparse(node.args[0]).partition("(")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "update"
        and node.args
    }
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name not in merged:
            if node.name != "get_config" and "c" not in [a.arg for a in node.args.args]:
                yield node.name


def _keys(node: ast.AST, comments: Comments) -> Iterator[tuple[str, str]]:
    """Yield the dotted keys of the dicts in an expression, and their comments."""
    if isinstance(node, ast.Call):
        for argument in node.args:
            yield from _keys(argument, comments)
    if not isinstance(node, ast.Dict):
        return
    for key, value in zip(node.keys, node.values):
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            comment = _at(comments, key.lineno, value.end_lineno or key.lineno)
            yield key.value, comment
            for below, text in _keys(value, comments):
                yield f"{key.value}.{below}", text


def _comment(node: ast.Assign, comments: Comments) -> str:
    return _at(comments, node.lineno, node.end_lineno or node.lineno)


def _at(comments: Comments, first: int, last: int) -> str:
    """Return the comment of the lines `first` to `last`, else the one above them."""
    for line in {first: 0, last: 0}:  # in this order, each once
        text, own = comments.get(line, ("", False))
        if text and not own:
            return text
    above: list[str] = []
    while comments.get(first - 1 - len(above), ("", False))[1]:
        above.insert(0, comments[first - 1 - len(above)][0])
    return " ".join(above)


def _comments(text: str) -> Comments:
    """Find all comments of a source."""
    found: Comments = {}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            alone = not token.line[: token.start[1]].strip()
            found[token.start[0]] = token.string.lstrip("# "), alone
    return found


def missing(path: str | pathlib.Path, config: Any) -> list[str]:
    """List the fields of a recipe that no comment explains."""
    return [name for name, text in lines(path, config).items() if not text]
