"""experiments/studies/test_time.py: its parts at toy size, and what it refuses."""

import gzip
import json

import pytest

from decoding.execution import tests_runner
from experiments.measurement import machine
from experiments.recipes import settings
from experiments.reporting import report
from experiments.run_folder import RunFolder
from experiments.studies import searched_pages, test_time
from models.errors import ConfigError, DataError

PAGE = "# c{0}\n\n> Show c{0}.\n\n- Show all the {0} files:\n\n`c{0}`\n"


@pytest.fixture
def data(tmp_path):
    """The two folders of texts, in small."""
    words, pages = tmp_path / "commongen", tmp_path / "tldr_pages"
    words.mkdir(), pages.mkdir()
    lists = [{"concept_set": ["ab_N", "c_V"]}, {"concept_set": ["d_N"]}]
    lines = "\n".join(json.dumps(row) for row in lists)
    (words / "commongen_lite_concepts.jsonl").write_text(lines)
    with gzip.open(pages / "tldr_en.jsonl.gz", "wt") as file:
        for i in range(3):
            file.write(json.dumps({"text": PAGE.format(i)}) + "\n")
    return tmp_path


@pytest.fixture
def config(data, monkeypatch):
    monkeypatch.setattr(machine, "last_level_cache", lambda: 2**20)
    monkeypatch.setenv(tests_runner.SWITCH, "1")
    c = settings.load("configs/studies/test_time.py")
    c.data, c.seeds = str(data), (0, 1)
    c.parts = ("countdown", "commongen", "tldr")  # programs take seconds to draw
    c.countdown.update(problems=2, samples=2, votes=2, trials=2, step_samples=2)
    c.countdown.update(expansions=1, step_tokens=2)
    c.programs.update(problems=1, simulations=12)
    c.commongen.update(problems=1, tokens=3, width=1, top=2, lookahead=1)
    c.commongen.update(weights=(8.0,), prefix_weights=())
    c.tldr.update(problems=1, tokens=4, width=2, diversities=(0.5,))
    return c


def models_of(config, lm):
    return dict.fromkeys(("countdown_model", "programs_model", "text_model"), lm)


@pytest.mark.long
def test_a_part_is_written_and_resumed(config, lm, tmp_path, monkeypatch):
    config.parts = ("tldr",)
    place = RunFolder(tmp_path / "w")
    found = test_time.run(config, place, models_of(config, lm))
    report.write(place, settings.plain(config), found)
    shown, claims = found["tables"]
    assert [line[0] for line in shown["lines"]] == ["beam", "samples", "diverse, 0.5"]
    assert all(len(line) == len(shown["heads"]) for line in shown["lines"])
    assert {line[-1] for line in claims["lines"]} <= {"yes", "even", "no"}
    assert "| diverse, 0.5 |" in (tmp_path / "w" / "report.md").read_text()
    never = lambda *_: pytest.fail("what was measured was measured again")
    monkeypatch.setattr(searched_pages, "page_row", never)
    assert test_time.run(config, place, models_of(config, lm))["tables"] == [
        shown,
        claims,
    ]


@pytest.mark.long
def test_all_parts(config, lm, tmp_path):
    config.parts = tuple(test_time.PARTS)
    found = test_time.run(config, RunFolder(tmp_path / "w"), models_of(config, lm))
    titles = [table["title"] for table in found["tables"]]
    assert titles == [
        "Countdown at equal model calls",
        "Countdown: claims",
        "Programs at equal model calls",
        "Programs: claims",
        "Sentences with given words",
        "Coverage at equal KL",
        "Examples of manual pages",
        "Examples of manual pages: claims",
    ]
    for table in found["tables"]:
        assert all(len(line) == len(table["heads"]) for line in table["lines"])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"parts": ("poems",)}, r"config\.parts=\('poems',\): use some of"),
        ({"parts": ()}, r"config\.parts=\(\)"),
        ({"data": ""}, r"config\.data='' has no folder commongen"),
        ({"data": "/nowhere"}, r"config\.data='/nowhere' has no folder commongen"),
        ({"seeds": (0, 1, 2)}, r"config\.commongen\.problems=1: there are 2"),
        ({"seeds": ()}, r"config\.countdown\.problems=2: there are 512"),
        ({"countdown.file": "planning/x.jsonl"}, "no folder planning, which the part"),
    ],
)
def test_bad_fields(config, tmp_path, fields, message):
    config.update_from_flattened_dict(fields)
    with pytest.raises(ConfigError, match=message):
        test_time.run(config, RunFolder(tmp_path / "w"))


def test_programs_are_run_only_where_it_is_allowed(config, tmp_path, monkeypatch):
    monkeypatch.delenv(tests_runner.SWITCH)
    test_time.check(config)
    config.parts = ("programs",)
    with pytest.raises(ConfigError, match="set DECODAX_ALLOW_EXECUTION=1, or leave"):
        test_time.run(config, RunFolder(tmp_path / "w"))


def test_rows_of_another_layout(config, data):
    (data / "commongen" / "commongen_lite_concepts.jsonl").write_text('{"x": 1}\n')
    with pytest.raises(DataError, match="line 1: not a row of commongen/"):
        test_time.check(config)
