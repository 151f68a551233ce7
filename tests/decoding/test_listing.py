"""The list of methods and their BibTeX."""

import pathlib
import runpy
from dataclasses import replace

import pytest

import decoding
from decoding import Method, Spec, catalogue, papers, recipes
from decoding.drafters import plain, token_recycling
from decoding.verifiers import rejection
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
    own = papers.entries()["luo2025turning"]
    assert own.startswith("@inproceedings{luo2025turning,") and own.endswith("\n}")
    assert decoding.cite("token_recycling") == own
    assert decoding.cite(Spec("drafters/token_recycling")) == own
    assert decoding.cite("drafters/token_recycling") == own


def test_a_citation_of_all_papers():
    """Every paper of every part once; planted: a part whose paper another one has."""
    both = Method(Spec("drafters/model"), Spec("verifiers/rejection"))
    leviathan, chen = map(papers.entry, ("leviathan2023fast", "chen2023accelerating"))
    assert decoding.cite(both) == f"{leviathan}\n\n{chen}"
    other = Method(Spec("drafters/model"), Spec("verifiers/spectr"))
    spectr = papers.entry("sun2023spectr")
    assert decoding.cite(other) == f"{leviathan}\n\n{chen}\n\n{spectr}"


@pytest.mark.parametrize("name", ["aded", "rasd", "foreal"])
def test_composed_methods_cite_every_part(name):
    parts = recipes.method(name).parts
    keys = {key for part in parts for key in part.card.sources}
    assert keys and all(papers.entry(key) in decoding.cite(name) for key in keys)
    assert "no BibTeX" not in decoding.cite(name)


def test_bibtex_of_a_card(monkeypatch):
    """A card may bring BibTeX, instead of keys or beside them."""
    own = replace(plain.CARD, paper="Mine, 2026", cite="\n@misc{mine2026}\n")
    monkeypatch.setattr(plain, "CARD", own)
    assert decoding.cite("drafters/plain") == "@misc{mine2026}"
    monkeypatch.setattr(plain, "CARD", replace(own, sources=("he2024rest",)))
    both = f"{papers.entry('he2024rest')}\n\n@misc{{mine2026}}"
    assert decoding.cite("drafters/plain") == both


def test_what_cannot_be_cited_is_named(monkeypatch):
    with pytest.raises(MethodError, match="baseline without a paper"):
        decoding.cite("plain")
    with pytest.raises(MethodError, match="no recipe 'nothing'"):
        decoding.cite("nothing")
    with pytest.raises(MethodError, match=r"did you mean 'he2024rest'"):
        papers.entry("he2023rest")
    without = replace(rejection.CARD, sources=())
    monkeypatch.setattr(rejection, "CARD", without)
    with pytest.raises(MethodError, match=r"rejection \(Speculative sampling"):
        decoding.cite("verifiers/rejection")
    both = Method(Spec("drafters/token_recycling"), Spec("verifiers/rejection"))
    own = papers.entry("luo2025turning")
    assert decoding.cite(both).startswith(f"{own}\n\n% no BibTeX yet for verifiers/rej")


def test_one_version():
    """setup.py reads the file that `decoding.__version__` is from."""
    root = pathlib.Path(decoding.__file__).parent
    stored = runpy.run_path(str(root / "version.py"))
    assert decoding.__version__ == stored["__version__"]
    assert "import" not in (root / "version.py").read_text().split('"""')[2]
