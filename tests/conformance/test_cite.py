"""papers.bib parses, cards name its entries, docstrings name the entries' authors."""

import ast
import pathlib
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

import decoding
from decoding import catalogue, papers
from decoding.listing import BASELINE

ROOT = pathlib.Path(decoding.__file__).parents[1]
FOLDERS = ("configs", "decoding", "experiments", "kernels", "models", "training")
BIB = ROOT / "decoding" / "papers.bib"

HEAD = re.compile(r"@(article|inproceedings|misc)\{([a-z]+\d{4}[a-z0-9]+),")
FIELD = re.compile(r"  (\w+) = \{(.*?)\},\n(?=  \w+ = \{|\}$)", re.S)
ID = r"(?:(?:0\d|1[0-4])\d\d\.\d{4}|\d{4}\.\d{5})"  # five digits from 2015 on
ARXIV = re.compile(ID)
BODY = re.compile(r"\{[^{}]+\}")  # an author that is no person

# "Cai, Li et al., *Title*, 2024, arXiv 2401.10774": the title and the id may be absent.
NAME = r"(?:van )?[^\W\d_a-z][\w-]+(?: [A-Z][\w-]+)?"
CITATION = re.compile(
    rf"({NAME}(?:, {NAME})*)( et al\.,?|,) \(?"
    rf'(?:(\*[^*]+\*|"[^"]+"), )?((?:19|20)\d\d)(?:, arXiv ({ID}))?'
)
YEAR = re.compile(rf"((?:19|20)\d\d), arXiv ({ID})")


@dataclass(frozen=True)
class Paper:
    """An entry's title, authors' surnames, year and arXiv id ("" without one)."""

    title: str
    surnames: tuple[str, ...]
    year: str
    arxiv: str


def plain(text: str) -> str:
    """Letters without TeX's braces, accents and case."""
    text = re.sub(r"\{\\.(\w)\}", r"\1", text).translate(str.maketrans("", "", "{}\\"))
    letters = unicodedata.normalize("NFKD", " ".join(text.split()))
    return "".join(c for c in letters if not unicodedata.combining(c)).casefold()


def bare(title: str) -> str:
    return re.sub(r"\W", "", plain(title))


def fields(entry: str) -> dict[str, str]:
    """The fields of an entry of the form that papers.bib has.

    Raises:
        ValueError: an entry of another form, or unbalanced braces.
    """
    head, _, body = entry.partition("\n")
    pairs = FIELD.findall(body)
    again = "".join(f"  {name} = {{{value}}},\n" for name, value in pairs) + "}"
    if not HEAD.fullmatch(head) or again != body:
        raise ValueError(f"no entry of papers.bib's form: {head}")
    if len(dict(pairs)) < len(pairs) or not all(map(balanced, dict(pairs).values())):
        raise ValueError(f"a field twice, or unbalanced braces: {head}")
    return {name: " ".join(value.split()) for name, value in pairs}


def balanced(value: str) -> bool:
    depths = [0]
    for c in value:
        depths.append(depths[-1] + (c == "{") - (c == "}"))
    return min(depths) == depths[-1] == 0


def paper(entry: str) -> Paper:
    known = fields(entry)
    people = [person.split(", ") for person in known["author"].split(" and ")]
    if any(len(p) != 2 and not BODY.fullmatch(p[0]) for p in people):
        raise ValueError(f"write authors as 'Surname, Name': {known['author']}")
    surnames = tuple(plain(person[0]) for person in people)
    return Paper(known["title"], surnames, known["year"], known.get("eprint", ""))


def bib_faults(text: str) -> list[str]:
    """What is wrong with a file of BibTeX."""
    found = {m[1]: m[0] for m in papers.ENTRY.finditer(text)}
    keys = re.findall(r"^@\w+\{([^,]+),", text, re.M)
    wrong = [] if keys == sorted({*keys}) else ["keys are not sorted, or not unique"]
    wrong += [f"{key} is no whole entry" for key in {*keys} - {*found}]
    ids = []
    for key, entry in found.items():
        try:
            known, work = fields(entry), paper(entry)
        except (ValueError, KeyError) as error:
            wrong.append(f"{key}: {error}")
            continue
        names = bare(work.surnames[0])
        if not key.startswith(names + work.year):
            wrong.append(f"{key} does not begin with {names}{work.year}")
        if work.arxiv:
            ids.append(work.arxiv)
            if not ARXIV.fullmatch(work.arxiv) or known["archivePrefix"] != "arXiv":
                wrong.append(f"{key}: no arXiv id {work.arxiv}")
        elif not {"booktitle", "journal", "howpublished", "url"} & {*known}:
            wrong.append(f"{key}: neither a venue nor an arXiv id")
    return wrong + [f"{i} twice" for i in {*ids} if ids.count(i) > 1]


def works() -> list[Paper]:
    return [paper(entry) for entry in papers.entries().values()]


def cited(text: str, known: list[Paper]) -> list[tuple[Paper | None, str]]:
    """The papers that a docstring cites with names, each with what is wrong."""
    found = []
    for names, rest, title, year, arxiv in CITATION.findall(" ".join(text.split())):
        listed = tuple(plain(name) for name in names.split(", "))
        if arxiv:
            fits = [p for p in known if p.arxiv == arxiv]
        else:
            fits = [p for p in known if (p.surnames[0], p.year) == (listed[0], year)]
            fits = [p for p in fits if bare(title) in bare(p.title)] if title else fits
        where = f"{names}, {title}, {year}, {arxiv}"
        if not fits:
            found.append((None, f"no entry of papers.bib for {where}"))
            continue
        work, shown = fits[0], listed
        if "et al." not in rest and listed != work.surnames:
            found.append((work, f"{where}: the authors are {work.surnames}"))
        elif listed != work.surnames[: len(listed)]:
            found.append((work, f"{where}: {shown} do not lead {work.surnames}"))
        elif len(title.split()) > 3 and not bare(work.title).startswith(bare(title)):
            found.append((work, f"{where}: the title is {work.title}"))
        else:
            found.append((work, ""))
    return found


def citation_faults(text: str, known: list[Paper]) -> list[str]:
    """What is wrong with the citations of a docstring."""
    wrong = [fault for _, fault in cited(text, known) if fault]
    years = {p.arxiv: p.year for p in known}
    for year, arxiv in YEAR.findall(" ".join(text.split())):
        if years.get(arxiv, year) != year:
            wrong.append(f"{arxiv} is of {years[arxiv]}, not {year}")
    return wrong


def card_faults(card: decoding.Card, text: str) -> list[str]:
    """What is wrong with a card's sources, `text` being its file's docstring."""
    if card.paper.startswith(BASELINE) and not card.sources:
        return []
    unknown = [key for key in card.sources if key not in papers.entries()]
    if unknown or not card.sources:
        return [f"no entries of papers.bib: {unknown or 'none is named'}"]
    named = [paper(papers.entries()[key]) for key in card.sources]
    wrong = [f"it names {p.title} nowhere" for p in named if not names(text, p)]
    strange = {*ARXIV.findall(card.paper)} - {p.arxiv for p in named}
    return wrong + [f"Card.paper has {i}, Card.sources does not" for i in strange]


def names(text: str, work: Paper) -> bool:
    return any(p == work for p, _ in cited(text, works())) or (
        bool(work.arxiv) and f"arXiv {work.arxiv}" in " ".join(text.split())
    )


def texts() -> Iterator[tuple[str, str]]:
    """Every docstring and page, with its file's name."""
    for folder in ("", *FOLDERS):
        pages = (ROOT / folder).rglob("*.md") if folder else ROOT.glob("*.md")
        for page in sorted(pages):
            yield str(page.relative_to(ROOT)), page.read_text("utf-8")
    for file in sorted(f for folder in FOLDERS for f in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                if text := ast.get_docstring(node):
                    yield str(file.relative_to(ROOT)), text


def test_every_entry_parses_and_is_cited_once():
    assert bib_faults(BIB.read_text("utf-8")) == []


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("  author = {Cai, T", "  authors = {Cai", "cai2024medusa: 'author'"),
        ("r = {Cai, Tianle and", "r = {Tianle Cai and", "write authors"),
        ("r = {{Inco AI}}", "r = {Inco AI}", "write authors"),
        ("  eprint = {2401.10774}", "  eprint = {2401.1077}", "no arXiv id 2401.1077"),
        ("  eprint = {2401.10774}", "  eprint = {2401.15077}", "2401.15077 twice"),
        ("{cai2024medusa,", "{cai2023medusa,", "not begin with cai2024"),
        ("{cai2024medusa,", "{bachmann2025judge,", "not unique"),
        ("Simple {LLM} Inf", "Simple {LLM Inf", "unbalanced"),
        ("  year = {2024},\n  eprint = {2401.10774},\n", "", "cai2024medusa: 'year'"),
        ("misc{saxena", "book{saxena", "form: @book{saxena"),
        ("\n  title = {Prompt", "\n title = {Prompt", "form: @misc{saxena"),
    ],
)
def test_fault_an_entry_to_cite(old, new, fault):
    """Planted: BibTeX with one mistake."""
    text = BIB.read_text("utf-8")
    assert text.count(old) == 1
    assert any(fault in wrong for wrong in bib_faults(text.replace(old, new)))


def test_docstrings_and_pages_cite_the_authors_of_the_entry():
    known = works()
    wrong = [
        f"{file}: {fault}"
        for file, text in texts()
        for fault in citation_faults(text, known)
    ]
    assert wrong == []


@pytest.mark.parametrize("name", sorted(catalogue.catalogue()))
def test_every_card_names_its_papers(name):
    module = catalogue.load(name)
    assert card_faults(module.CARD, module.__doc__) == []


GOOD = """A title.

Dumitru, Yang, Yadav, Surdeanu, *CopySpec: Accelerating LLMs with Speculative
Copy-and-Paste*, 2025, arXiv 2502.08923, section 3; Bachmann, Anagnostidis et al.,
*Judge Decoding*, 2025, arXiv 2501.19309, and Saxena, *Prompt Lookup Decoding*, 2023.
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Yang, Yadav, Surdeanu", "Sharma, Zhu, Alvarez"),
        ("Yang, Yadav, Surdeanu", "Yadav, Yang, Surdeanu"),
        ("Yadav, Surdeanu", "Yadav"),
        ("Anagnostidis et al.", "Pumarola et al."),
        ("Anagnostidis et al.", "Anagnostidis"),
        ("Surdeanu, *CopySpec: Acc", "Surdeanu, *CopySpec: Copy Acc"),
        ("2025, arXiv 2502.08923", "2024, arXiv 2502.08923"),
        ("2025, arXiv 2501.19309", "2025, arXiv 2502.08923"),
        ("2025, arXiv 2501.19309", "2025, arXiv 2501.19300"),
        ("Saxena", "Smith"),
        ("2023.", "2022."),
    ],
)
def test_fault_authors_that_a_docstring_cites(old, new):
    """Planted: invented, missing or exchanged names, and another year, title or id."""
    known = works()
    assert citation_faults(GOOD, known) == []
    assert len(cited(GOOD, known)) == 3
    planted = GOOD.replace(old, new, 1)
    assert planted != GOOD and citation_faults(planted, known)


def test_fault_sources_of_a_card():
    """Planted: no key, an unknown one, one of another paper, and another id."""
    card = decoding.Card("CopySpec, arXiv 2502.08923", "LAW")

    def faults(*keys):
        return card_faults(decoding.Card(card.paper, "LAW", sources=keys), GOOD)

    assert faults("dumitru2025copyspec") == []
    assert faults("dumitru2025copyspec", "bachmann2025judge") == []
    assert faults("dumitru2025copyspec", "cai2024medusa") and faults("nothing2020")
    assert "none is named" in faults()[0]
    assert "Card.paper has 2502.08923" in faults("bachmann2025judge")[0]
    assert card_faults(decoding.Card("baseline: none", "LAW"), "") == []
