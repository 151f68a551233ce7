"""The list of methods and their BibTeX."""

import pathlib
import runpy

import pytest

import decoding
from decoding import Method, Spec, catalogue
from decoding.drafters import token_recycling
from models.errors import MethodError


def test_every_method_is_listed_once():
    listed = decoding.methods()
    assert sorted(e.name for e in listed) == sorted(catalogue.catalogue())
    assert len(listed) == len({*listed})
    entry = next(e for e in listed if e.name == "drafters/token_recycling")
    assert entry.family == "training-free" and entry.guarantee == "LAW"
    assert entry.paper == token_recycling.CARD.paper


def test_families_stand_together():
    """Planted: in the order of the names they would not."""
    seen = [(e.name.split("/")[0], e.family) for e in decoding.methods()]
    runs = [a for a, b in zip(seen, [None, *seen]) if a != b]
    assert len(runs) == len({*runs})
    names = sorted(decoding.methods())
    seen = [(e.name.split("/")[0], e.family) for e in names]
    assert len([a for a, b in zip(seen, [None, *seen]) if a != b]) > len(runs)


def test_it_prints_as_a_table():
    lines = repr(decoding.methods()).splitlines()
    assert len(lines) == len(decoding.methods()) + 1
    assert lines[0].split() == ["name", "family", "guarantee", "paper"]
    start = lines[0].index("guarantee")
    allowed = {"LAW", "ARGMAX", "LOSSY"}
    assert {line[start:].split()[0] for line in lines[1:]} == allowed


def test_a_citation_by_name_method_and_spec():
    own = token_recycling.CARD.cite.strip()
    assert decoding.cite("token_recycling") == own
    assert decoding.cite(Spec("drafters/token_recycling")) == own
    assert decoding.cite("drafters/token_recycling") == own
    both = Method(Spec("drafters/token_recycling"), Spec("verifiers/rejection"))
    assert decoding.cite(both).startswith(own + "\n\n% no BibTeX yet for verifiers/")


def test_what_cannot_be_cited_is_named():
    with pytest.raises(
        MethodError, match=r"verifiers/rejection \(Speculative sampling"
    ):
        decoding.cite("verifiers/rejection")
    with pytest.raises(MethodError, match="baseline without a paper"):
        decoding.cite("plain")
    with pytest.raises(MethodError, match="no recipe 'nothing'"):
        decoding.cite("nothing")


def bibtex(text: str) -> list[str]:
    """What is wrong with an entry."""
    wrong = []
    if text.count("{") != text.count("}") or not text.strip().startswith("@"):
        wrong.append("braces")
    return wrong + [
        f for f in ("title", "author", "year") if f"\n  {f} = {{" not in text
    ]


def test_every_entry_is_bibtex():
    """Planted: an entry without its authors, and one cut short."""
    cited = [card.cite for card in catalogue.catalogue().values() if card.cite]
    assert cited and not any(bibtex(text) for text in cited)
    assert bibtex(cited[0].replace("author", "editor")) == ["author"]
    assert "braces" in bibtex(cited[0].strip()[:-1])


def test_one_version():
    """setup.py reads the file that `decoding.__version__` is from."""
    root = pathlib.Path(decoding.__file__).parent
    stored = runpy.run_path(str(root / "version.py"))
    assert decoding.__version__ == stored["__version__"]
    assert "import" not in (root / "version.py").read_text().split('"""')[2]
