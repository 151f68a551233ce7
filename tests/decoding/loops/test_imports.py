"""The loop knows interfaces, and no method: it imports no role folder."""

import ast
import pathlib

import decoding
from decoding import catalogue

ROOT = pathlib.Path(decoding.__file__).parent
FILES = [*sorted((ROOT / "loops").glob("*.py")), ROOT / "base.py", ROOT / "tree.py"]


def methods(source: str) -> list[str]:
    """The modules of role folders that a text of Python imports."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            found += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
    roles = [("decoding", folder) for folder in catalogue.FACTORIES]
    return [name for name in found if tuple(name.split(".")[:2]) in roles]


def test_the_loop_imports_no_method():
    assert {file.name: methods(file.read_text()) for file in FILES} == {
        file.name: [] for file in FILES
    }


def test_fault_a_loop_that_imports_a_method():
    """Planted: the three forms of such an import."""
    for line in (
        "from decoding.caches import dense",
        "from decoding import drafters",
        "import decoding.constraints.regex",
    ):
        assert methods(line)
