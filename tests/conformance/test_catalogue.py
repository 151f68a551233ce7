"""Every method file: a card, a factory, a source, and a test of its own."""

import importlib
import inspect
import json
import pathlib
import pkgutil
import types

import pytest

from decoding import Card, Method, Spec, base, catalogue
from decoding.conformance import files as method_files
from decoding.conformance import kit
from tests import list_faults

TESTS = pathlib.Path(__file__).parent.parent / "decoding"


def files() -> list[str]:
    """Every module of the method folders, methods or not."""
    found = []
    for folder in catalogue.FACTORIES:
        package = importlib.import_module(f"decoding.{folder}")
        found += [f"{folder}/{m.name}" for m in pkgutil.iter_modules(package.__path__)]
    return sorted(found)


def faults(name: str, module) -> list[str]:
    """List what a method file or its test lacks."""
    folder, short = name.split("/")
    wrong = method_files.faults(folder, module)
    test = TESTS / folder / f"test_{short}.py"
    if not test.exists():
        wrong.append(f"no test tests/decoding/{folder}/test_{short}.py")
    elif not any(list_faults.faults(test)):
        wrong.append(f"no planted fault in tests/decoding/{folder}/test_{short}.py")
    return wrong


def test_planted_faults_are_listed():
    """The three ways to plant one; and a test without is not listed."""
    names = {fault.name for fault in list_faults.every()}
    assert {"test_fault_keys_of_the_row", "resample_from_p"} <= names
    assert "test_a_method_is_written_and_read" in names  # by a comment inside it
    assert "test_cards_have_examples" not in names


@pytest.mark.parametrize("name", files())
def test_method_file(name):
    assert (
        faults(name, importlib.import_module(f"decoding.{name.replace('/', '.')}"))
        == []
    )


def test_fault_a_bare_file():
    """Planted: a file with nothing that a method file needs."""
    bare = types.ModuleType("bare", "Says little.")
    wrong = faults("drafters/bare", bare)
    assert [w.split()[0] for w in wrong] == ["no", "no", "its", "no"]
    stranger = types.SimpleNamespace(
        __doc__="Cost: none.",
        drafter=lambda: None,
        CARD=Card(paper="", guarantee="SURE"),
    )
    wrong = faults("drafters/plain", stranger)
    assert len(wrong) == 2 and "guarantee" in wrong[1]
    stranger.CARD = Card(paper="A", guarantee=base.LAW, data=("p",))
    wrong = faults("drafters/plain", stranger)
    assert [w.split()[-1] for w in wrong[1:]] == ["family", "'p'"]


@pytest.mark.parametrize("name", files())
def test_cards_have_examples(name):
    """The suite runs every method, with the arguments of its card's examples."""
    known = inspect.signature(Spec(name).factory).parameters
    assert set(Spec(name).card.examples) <= set(known)
    assert kit.spec(name).required == [], "add it to CARD.examples"


def test_a_method_is_written_and_read():
    """Through JSON; planted: a method that lost its transforms is another one."""
    for method in kit.cases().values():
        said = json.loads(json.dumps(method.to_config()))
        assert Method.from_config(said) == method
        del said["transforms"]
        assert Method.from_config(said) != method
