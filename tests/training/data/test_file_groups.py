"""Documents of several kinds of file: whole, split once, in a fixed order."""

import dataclasses
import gzip
import json
import pathlib

import pytest

from configs.language_models import tiny_text
from models.errors import DataError
from training.data import file_groups
from training.data.file_groups import Part

HELD = 0.2


def write(folder: pathlib.Path) -> list[Part]:
    """Two novels of twenty chapters, thirty articles, and thirty rows of each JSON."""
    for name in ("novels", "wiki", "rows"):
        (folder / name).mkdir(parents=True)
    for i in range(2):
        chapters = [f"CHAPTER {j}\nNovel {i}. {'word ' * 20}{j}" for j in range(20)]
        text = json.dumps({"text": "\n".join(chapters), "id": i}) + "\n"
        packed = gzip.compress(text.encode())
        (folder / "novels" / f"{i}.jsonl.gz").write_bytes(packed)
    articles = [
        f" = Title {i} = \n\n{'fact ' * 20}\n = = Part = = \n" for i in range(30)
    ]
    (folder / "wiki" / "train.txt").write_text("\n".join(articles))
    rows = [
        {"q": f"Question {i}? {'why ' * 20}", "more": "", "a": f"{i}."}
        for i in range(30)
    ]
    (folder / "rows" / "list.json").write_text(json.dumps(rows))
    rows = [{**row, "more": "Given \u2028 this."} for row in rows]
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (folder / "rows" / "lines.jsonl").write_text(lines)
    return [
        Part("novels/*.jsonl.gz", ("text",), tiny_text.CHAPTERS),
        Part("wiki/*.txt", between=tiny_text.ARTICLES),
        Part("rows/list.json", ("q", "more", "a")),
        Part("rows/*.jsonl", ("q", "more", "a")),
    ]


def test_every_document_once(tmp_path: pathlib.Path) -> None:
    """Both splits together are all documents, in order; the share is about `held`."""
    chosen = write(tmp_path)
    train, held = (
        file_groups.texts(tmp_path, chosen, s, HELD) for s in file_groups.SPLITS
    )
    whole = file_groups.texts(tmp_path, chosen, "train", 0.0)
    assert len(whole) == 40 + 30 + 30 + 30 == len(train) + len(held)
    assert [t for t in whole if t in set(train)] == train
    assert set(train).isdisjoint(held) and 0.1 < len(held) / len(whole) < 0.3
    assert whole[1].startswith("CHAPTER 1\nNovel 0") and "CHAPTER 2" not in whole[1]
    assert whole[40].startswith(" = Title 0") and " = = Part = = " in whole[40]
    assert whole[70].count("\n\n") == 1 and whole[70].endswith("\n\n0.")
    assert "\n\nGiven \u2028 this.\n\n0." in whole[100]


def test_a_repeated_document_is_in_one_split(tmp_path: pathlib.Path) -> None:
    """Planted: the same file twice, under other names, gives nothing new."""
    chosen = write(tmp_path)
    twice = [*chosen, Part("rows/list.json", ("q", "more", "a"))]
    for split in file_groups.SPLITS:
        once = file_groups.texts(tmp_path, chosen, split, HELD)
        assert file_groups.texts(tmp_path, twice, split, HELD) == once


def test_the_code_before_a_document(tmp_path: pathlib.Path) -> None:
    """It moves no document to the other split; planted: another text, which does."""
    chosen = write(tmp_path)
    coded = [dataclasses.replace(part, before="\x01") for part in chosen]
    for split in file_groups.SPLITS:
        plain = file_groups.texts(tmp_path, chosen, split, HELD)
        behind = file_groups.texts(tmp_path, coded, split, HELD)
        assert behind == [f"\x01{text}" for text in plain]
    packed = (tmp_path / "wiki" / "train.txt").read_text()
    (tmp_path / "wiki" / "train.txt").write_text(packed.replace("Title", "\x01Title"))
    held = file_groups.texts(tmp_path, chosen, "validation", HELD)
    assert [text.replace("\x01", "") for text in held] != plain


def test_mistakes_are_named(tmp_path: pathlib.Path) -> None:
    chosen = write(tmp_path)
    with pytest.raises(DataError, match="name the folder"):
        file_groups.texts("", chosen, "train", HELD)
    with pytest.raises(DataError, match="no file 'other/"):
        file_groups.texts(tmp_path, [Part("other/*.txt")], "train", HELD)
    with pytest.raises(DataError, match="row 1: no text under 'b'"):
        file_groups.texts(tmp_path, [Part("rows/list.json", ("b",))], "train", HELD)
    with pytest.raises(DataError, match="split='test'"):
        file_groups.texts(tmp_path, chosen, "test", HELD)
    with pytest.raises(DataError, match="no document for validation"):
        file_groups.texts(tmp_path, chosen, "validation", 0.0)
    (tmp_path / "rows" / "list.json").write_text("{")
    with pytest.raises(DataError, match="not JSON"):
        file_groups.texts(tmp_path, chosen, "train", HELD)
