"""List the planted faults: `python -m tests.list_faults`.

A planted fault is a small wrong change to a sound part, and stands beside the test that
must notice it: a test named `test_fault_...`, a function of a tuple `FAULTS`, or the
word "planted" in a test's docstring or in a comment inside it.
"""

import ast
import pathlib
import re
from collections.abc import Iterator
from typing import NamedTuple

HERE = pathlib.Path(__file__).parent


class Fault(NamedTuple):
    """A fault, the file that holds it, and the first line that describes it."""

    file: str
    name: str
    text: str


def faults(path: pathlib.Path) -> Iterator[Fault]:
    """Yield the planted faults of a test file, in its order."""
    source = path.read_text()
    module, lines = ast.parse(source), source.splitlines()
    file = path.relative_to(HERE.parent).as_posix()
    listed = {
        element.id
        for node in module.body
        if isinstance(node, ast.Assign)
        and [ast.unparse(target) for target in node.targets] == ["FAULTS"]
        and isinstance(node.value, ast.Tuple)
        for element in node.value.elts
        if isinstance(element, ast.Name)
    }
    for node in module.body:
        if not isinstance(node, ast.FunctionDef):
            continue
        body = "\n".join(lines[node.lineno - 1 : node.end_lineno])  # with its comments
        planted = re.search(r"(?i)\bplanted\b:?\s*(.*)", body)
        named = node.name.startswith("test_fault_") or node.name in listed
        if named or (planted and node.name.startswith("test_")):
            doc = (ast.get_docstring(node) or "").split("\n")[0]
            text = planted[1] if planted else doc
            words = text.strip(' ."') or node.name.removeprefix("test_fault_")
            yield Fault(file, node.name, words.replace("_", " "))


def every() -> list[Fault]:
    """Return the planted faults of all test files."""
    return [fault for path in sorted(HERE.rglob("test_*.py")) for fault in faults(path)]


if __name__ == "__main__":
    for fault in every():
        print(f"{fault.file}::{fault.name}: {fault.text}")
