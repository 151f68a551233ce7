"""The templates of CONTRIBUTING.md: each passes what its family is held to."""

import importlib
import pathlib
import re
import sys

import pytest

from decoding import Method, Spec
from decoding.conformance import drafters, kit, verifiers
from experiments.stage import Stage
from tests.conformance.test_contracts import CONTRACTS

PAGE = pathlib.Path(__file__).parent.parent / "CONTRIBUTING.md"
BLOCK = re.compile(r"^```python\n# (\S+)\n(.*?)^```$", re.M | re.S)


def templates() -> dict[str, str]:
    """The page's files: path -> text."""
    return dict(BLOCK.findall(PAGE.read_text()))


@pytest.fixture(scope="module", autouse=True)
def copied(tmp_path_factory):
    """The page's files, importable beside those of the project."""
    root, packages = tmp_path_factory.mktemp("templates"), {}
    for path, text in templates().items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        name = ".".join(pathlib.PurePath(path).parts[:-1])
        if not path.startswith("tests/") and name not in packages:
            packages[name] = importlib.import_module(name)
            packages[name].__path__.append(str(file.parent))
    yield root
    for name, package in packages.items():
        package.__path__.pop()
        for module in [m for m in sys.modules if m.startswith(f"{name}.my_")]:
            del sys.modules[module]
            vars(package).pop(module.rpartition(".")[2], None)


@pytest.mark.parametrize("folder", CONTRACTS)
def test_parts_keep_their_contracts(folder):
    names = [
        path.removeprefix("decoding/").removesuffix(".py")
        for path in templates()
        if path.startswith(f"decoding/{folder}/")
    ]
    assert len(names) == 1 + (folder == "search")
    for name in names:
        CONTRACTS[folder](Spec(name))


@pytest.mark.long
def test_the_verifier_keeps_its_contract():
    verifiers.check(Spec("verifiers/my_verifier"))


@pytest.mark.parametrize("short", ["my_drafter", "my_head"])
def test_drafters_keep_the_text(short):
    spec = kit.spec(f"drafters/{short}")
    tree = kit.spec("topologies/static") if "topology" in spec.card.needs else None
    drafters.text_is_plain(Method(spec, topology=tree), 0.8)


def test_the_study_is_a_stage(copied):
    study = importlib.import_module("experiments.studies.my_study")
    assert type(study.STAGE) is Stage
    recipe = importlib.import_module("configs.studies.my_study").get_config()
    assert recipe.stage == "my_study"


def test_tests_of_the_page_pass(copied):
    """Planted: their own faults."""
    count = 0
    for path in [p for p in templates() if p.startswith("tests/")]:
        names: dict = {"__name__": path}
        exec(compile(templates()[path], path, "exec"), names)
        for name in [n for n in names if n.startswith("test_")]:
            names[name]()
            count += 1
    assert count == 7
