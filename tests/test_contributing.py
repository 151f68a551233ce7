"""The templates of CONTRIBUTING.md: every one passes what its family is held to."""

import importlib
import pathlib
import re
import sys

import pytest

from decoding import catalogue

PAGE = pathlib.Path(__file__).parent.parent / "CONTRIBUTING.md"
BLOCK = re.compile(r"^```python\n# (\S+)\n(.*?)^```$", re.M | re.S)


def templates() -> dict[str, str]:
    """The page's files: path -> text."""
    return dict(BLOCK.findall(PAGE.read_text()))


METHODS = [path for path in templates() if path.split("/")[1] in catalogue.FACTORIES]


@pytest.fixture(scope="module", autouse=True)
def copied(tmp_path_factory):
    """The methods of the page, importable beside those of the project."""
    root, packages = tmp_path_factory.mktemp("templates"), {}
    for path in METHODS:
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(templates()[path])
        name = ".".join(pathlib.PurePath(path).parts[:-1])
        package = packages[name] = importlib.import_module(name)
        package.__path__.append(str(file.parent))
    yield
    for name, package in packages.items():
        package.__path__.pop()
        for module in [m for m in sys.modules if m.startswith(f"{name}.my_")]:
            del sys.modules[module]
            delattr(package, module.rpartition(".")[2])
