"""Parquet is read as the JSONL of its rows, and both from data sets of a hub."""

import datetime
import json
import pathlib
import shutil

import pyarrow
import pyarrow.parquet
import pytest
from huggingface_hub import constants

from configs import replay as replay_recipe
from decoding.serving import prompt_set
from experiments import datastore
from experiments.prompts import question_files
from experiments.studies import replay
from models.errors import DataError
from models.text import row_files
from tests.models.checkpoints.hub_server import Hub, forget, online  # noqa: F401
from tests.training.data.test_conversations import lm  # noqa: F401
from training.data import documents, file_groups, inspect_conversations, sources

SAID = [{"content": "Hi", "role": "user"}, {"content": "Ho", "role": "assistant"}]
# Every reader finds its fields here: some rows are texts, some conversations.
ROWS = [
    {"text": f"text {i} \u2028 é", "prompt": f"Q{i}", "turns": [f"Q{i}"], "p": [1, i]}
    for i in range(40)
] + [{"text": "", "prompt": "Q", "turns": ["A", "B"], "p": [2, 3], "messages": SAID}]
ADDRESS = "hf://datasets/lab/texts@v1"


def write(folder: pathlib.Path, rows: list = ROWS, name: str = "rows") -> None:
    """Write `name`.jsonl and `name`.parquet, of several row groups."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (folder / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    table = pyarrow.Table.from_pylist(rows, _schema(rows))
    pyarrow.parquet.write_table(table, folder / f"{name}.parquet", row_group_size=7)


def _schema(rows: list) -> pyarrow.Schema:
    """The columns of all rows, in their order: `from_pylist` takes the first row's."""
    names = dict.fromkeys(name for row in rows for name in row)
    values = {n: [row[n] for row in rows if n in row] for n in names}
    return pyarrow.schema([(n, pyarrow.array(x).type) for n, x in values.items()])


@pytest.fixture
def data(online, tmp_path) -> Hub:  # noqa: F811
    """A hub with the data set `lab/texts`: rows of both forms in `data/`."""
    online.folders["datasets/lab/texts"] = tmp_path / "texts"
    write(tmp_path / "texts" / "data")
    return online


def everything(lm, source: str, folder: pathlib.Path) -> list:  # noqa: F811
    """What each reader of rows makes of a source."""
    config = replay_recipe.get_config()
    config.data, config.prompt_field, config.response_field = source, "p", "p"
    found = [documents.read(lm, source, s, folder, folder) for s in sources.SPLITS]
    examined = inspect_conversations.examine(lm, source, 0)
    return [
        [sources.texts(source, split, folder) for split in sources.SPLITS],
        [[t.tolist() for t in split.tokens] for split in found],
        question_files.read(source),
        prompt_set.read(lm, source, 4),
        [r.prompt for r in replay.read(config, lm.tokenizer)],
        [examined.lines, examined.usable],
    ]


def test_parquet_is_its_rows_as_lines(lm, tmp_path):  # noqa: F811
    """Every reader makes the same of both forms, held-out rows included."""
    write(tmp_path)
    lines, table = tmp_path / "rows.jsonl", tmp_path / "rows.parquet"
    whole = [x for _, x in row_files.lines(table)]
    assert whole == lines.read_text(encoding="utf-8").split("\n")[:-1]
    expected = everything(lm, str(lines), tmp_path)
    assert everything(lm, str(table), tmp_path) == expected
    groups = [
        list(file_groups.documents(tmp_path, file_groups.Part(f.name, ("text",))))
        for f in (lines, table)
    ]
    assert groups[0] == groups[1] == [row["text"] for row in ROWS]
    # Planted: another row.
    write(tmp_path, [*ROWS[1:], ROWS[1]])
    assert everything(lm, str(table), tmp_path) != expected


def test_columns_that_json_has_no_form_of(tmp_path):
    """Bytes and dates become texts; a null is left out, so that it hides no kind."""
    rows = [
        {"text": "é".encode(), "day": datetime.date(2024, 1, 2), "messages": None},
        {"text": None, "day": None, "messages": SAID},
    ]
    table = pyarrow.Table.from_pylist(rows)
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    places, lines = zip(*row_files.lines(tmp_path / "a.parquet"))
    assert [json.loads(x) for x in lines] == [
        {"text": "é", "day": "2024-01-02"},
        {"messages": SAID},
    ]
    assert places[1] == f"{tmp_path / 'a.parquet'}, row 2"
    (tmp_path / "b.parquet").write_bytes(b"PAR1 and no more")
    for name in ("b.parquet", "none.parquet", "none.jsonl"):
        with pytest.raises(DataError, match=f"{name}: not a readable"):
            list(row_files.lines(tmp_path / name))


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet"])
def test_a_file_of_a_data_set(lm, data, tmp_path, name):  # noqa: F811
    """Every reader takes the address, and then, offline, the cache."""
    address = f"{ADDRESS}/data/{name}"
    expected = everything(lm, str(tmp_path / "texts" / "data" / name), tmp_path)
    assert everything(lm, address, tmp_path) == expected
    assert data.downloaded() == [name]
    part = file_groups.Part(f"data/{name}", ("text",))
    texts = [row["text"] for row in ROWS]
    assert list(file_groups.documents(ADDRESS, part)) == texts
    assert [x.name for x in datastore.files([address], "")] == [name]


def test_several_files_and_no_network(data, tmp_path, monkeypatch):
    """A pattern takes its files alone; the cache serves them without a network."""
    folder = data.folders["datasets/lab/texts"]
    write(folder / "data", ROWS[:3], "more")
    shutil.copy(folder / "data" / "rows.jsonl", folder / "top.jsonl")
    address = f"{ADDRESS}/data/*.jsonl"
    expected = [row["text"] for row in ROWS[:3] + ROWS]
    assert sources.texts(address, sources.EVERY, tmp_path) == expected
    assert data.downloaded() == ["more.jsonl", "rows.jsonl"]
    sent = len(data.asked)
    forget()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert sources.texts(address, sources.EVERY, tmp_path) == expected
    assert len(row_files.paths(f"{ADDRESS}/data/rows.jsonl")) == 1
    assert len(data.asked) == sent
    with pytest.raises(DataError, match="HF_HUB_OFFLINE is set"):
        row_files.paths(f"{ADDRESS}/top.jsonl")


@pytest.mark.parametrize(
    "address,words",
    [
        ("hf://lab/texts/data/rows.jsonl", "names no file of a data set: write hf://"),
        ("hf://datasets/lab/texts", "names no file of a data set"),
        (f"{ADDRESS}/none.jsonl", "lab/texts@v1 has no such file"),
        (f"{ADDRESS}/none*.jsonl", r"has no file 'none\*.jsonl'"),
        ("hf://datasets/lab/texts@v9/a.jsonl", "no revision 'v9': use a branch"),
        ("hf://datasets/lab/texts@refs%2Fpr%2F9/a.jsonl", "no revision 'refs/pr/9'"),
        ("hf://datasets/lab/texts@refs/pr/9/a.jsonl", "no revision 'refs/pr/9'"),
        ("hf://datasets/lab/none/a.jsonl", "has no repository datasets/lab/none that"),
        ("hf://datasets/lab/gated/data/rows.jsonl", "is gated: accept its terms at"),
    ],
)
def test_mistakes_are_named_with_a_remedy(data, address, words):
    data.folders["datasets/lab/gated"] = data.folders["datasets/lab/texts"]
    data.gated.add("datasets/lab/gated")
    with pytest.raises(DataError, match=words):
        row_files.paths(address)
