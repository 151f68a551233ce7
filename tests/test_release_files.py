"""Files beside the code that must agree with it: version, citation, package data."""

import pathlib
import re
import runpy

import pytest
import setuptools

ROOT = pathlib.Path(__file__).parents[1]
EXAMPLES = ROOT / "experiments" / "examples"  # packages of their own


@pytest.fixture(scope="module")
def packaging():
    """The arguments that setup.py gives to setuptools."""
    given = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(setuptools, "setup", lambda **arguments: given.update(arguments))
        patch.chdir(ROOT)
        runpy.run_path(str(ROOT / "setup.py"))
    return given


def released(changelog: str) -> str:
    """The newest version with a date."""
    return re.findall(r"^## \[([\d.]+)\] - \d{4}-\d\d-\d\d$", changelog, re.M)[0]


def test_one_version(packaging):
    """Planted: a release that the changelog alone has."""
    lines = (ROOT / "CITATION.cff").read_text().splitlines()
    citation = dict(line.split(": ", 1) for line in lines if ": " in line)
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert packaging["version"] == citation["version"] == released(changelog)
    assert packaging["license"] == citation["license"]
    planted = changelog.replace("## [0.1.0]", "## [0.2.0] - 2027-01-01\n\n## [0.1.0]")
    assert released(planted) != packaging["version"]


def test_every_package_is_installed(packaging):
    """Each folder with Python files; planted: a folder that has no __init__.py."""

    def missing(names):
        tops = {name.split(".")[0] for name in names}
        files = [file for top in tops for file in (ROOT / top).rglob("*.py")]
        files = [file for file in files if not file.is_relative_to(EXAMPLES)]
        folders = {file.parent.relative_to(ROOT).parts for file in files}
        return {".".join(parts) for parts in folders} - set(names)

    assert not missing(packaging["packages"])
    without = [name for name in packaging["packages"] if name != "training.runs"]
    assert missing(without) == {"training.runs"}


def test_package_data_is_complete(packaging):
    """Every file in a package that is not Python is installed, or is a document.

    Planted: a pattern that is left out.
    """

    def missing(data):
        found = []
        packages = {name.split(".")[0] for name in packaging["packages"]}
        for package in sorted(packages):
            folder = ROOT / package
            kept = {file for p in data.get(package, ()) for file in folder.glob(p)}
            found += [
                str(file.relative_to(ROOT))
                for file in folder.rglob("*")
                if file.is_file()
                and file not in kept
                and file.suffix not in (".py", ".pyc", ".md")
                and not file.is_relative_to(ROOT / "experiments" / "reports")
                and not file.is_relative_to(EXAMPLES)
            ]
        return found

    assert not missing(packaging["package_data"])
    without = {**packaging["package_data"], "experiments": ["py.typed", "prompts/*"]}
    assert len(missing(without)) == 4  # three templates of pages, and their style
