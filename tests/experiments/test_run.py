"""A whole run: resume, the report's schema, the page."""

import dataclasses
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from experiments import run_folder
from experiments.measurement import measured_row
from experiments.recipes import settings
from experiments.reporting import html, page_charts, report, token_tree_svg
from experiments.reporting.page_charts import Bar, Group
from experiments.studies import common, evaluate
from models.errors import ConfigError

SCHEMA = (
    "method guarantee task temperature batch seed repeats prompts new_tokens "
    "target_calls tokens_per_call ci95 accepted_by_depth loop_share tokens_per_s "
    "speedup mbu draft_share identical_to_plain compared_tokens ties compile_seconds "
    "expected tolerance"
).split()


def execute(config, folder, lm, drafts=None):
    place = run_folder.RunFolder(folder)
    place.claim(config, evaluate.STAGE.resumable_fields)
    found = evaluate.run(config, place, lm, drafts)
    found["commands"] = ["python -m experiments.run"]
    return report.write(place, settings.plain(config), found)


class Page(HTMLParser):
    """Counts elements and collects text and addresses."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.said, self.links = [], "", []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [v for k, v in attrs if k in ("src", "href")]

    def handle_data(self, data):
        self.said += data


def test_report(config, tmp_path, lm):
    with config.unlocked():
        config.trees = ("prompt_lookup",)
        config.tree_rounds = 2
        config.curve, config.widths = True, (1, 2)
        config.expected = (("plain-text-t0-b1-s0", {"tokens_per_call": 1.0}),)
    made = execute(config, tmp_path, lm)
    assert made == json.loads((tmp_path / "report.json").read_text())
    for name in ("hardware", "versions", "config", "bandwidth_gb_s", "rows"):
        assert name in made
    assert [r["method"] for r in made["rows"]] == list(config.methods)
    for row in made["rows"]:
        assert set(SCHEMA) <= set(row)
        assert row["identical_to_plain"] is True
        assert row["compared_tokens"] == 48 or row["ties"]
        assert row["ci95"][0] <= row["tokens_per_call"] <= row["ci95"][1]
        assert 0 < row["draft_share"] and 0 < row["mbu"]
        # One repeat of two batches; the medians are those of the stored times.
        assert np.shape(row["seconds"]) == np.shape(row["plain_seconds"]) == (1, 2)
        ratio = np.sum(row["plain_seconds"]) / np.sum(row["seconds"])
        assert row["by_repeat"]["speedup"] == [row["speedup"]]
        assert row["speedup"] == pytest.approx(ratio)  # the texts are equal
        low, high = row["speedup_ci95"]
        assert low <= row["speedup"] <= high
    plain = made["rows"][0]
    assert plain["tokens_per_call"] == 1.0 and plain["within"] == {
        "tokens_per_call": True
    }
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2
    assert "| plain | paper | text | 0 | 1.00" in (tmp_path / "report.md").read_text()
    figures = {p.name for p in (tmp_path / "figures").iterdir()}
    assert {"tokens_per_call.png", "speedup.png", "call_time.png"} <= figures

    seen = Page((tmp_path / "report.html").read_text())
    assert not seen.links  # self-contained
    assert seen.tags.count("svg") >= 5 and "table" in seen.tags
    for said in ("prompt_lookup", "round 1", "Provenance", "jax", "tokens/call"):
        assert said in seen.said
    assert (tmp_path / "report.html").read_text().count('class="panel"') == 2


def test_tree_of_a_round():
    entry = {
        "tokens": ["def", " a", " b", "(", "<&>", "pad"],
        "parents": [-1, 0, 0, 1, 2, 0],
        "kind": [1, 1, 1, 1, 1, 0],
        "path": [2, 4],
        "token": ":\n",
    }
    drawing = token_tree_svg.token_tree(entry)
    assert drawing.count('class="edge on"') == 2 and drawing.count('class="edge"') == 2
    assert drawing.count('class="node on"') == 2 and "node own" in drawing
    assert "&lt;&amp;&gt;" in drawing and ":⏎" in drawing and "pad" not in drawing


def test_charts_take_their_colours_from_the_page():
    """Names and values are text; planted: a colour that page.css does not set."""
    pair = [Bar(2.5, (2.25, 3.0), name="auto"), Bar(2.0, hollow=True, name="paper")]
    rows = [Group("a<b>", 0, pair), Group("c", 8, [Bar(1.25)])]
    colours = {"a<b>": 0, "c": 8}
    drawing = page_charts.bars(rows, "x & y", 3.0, band=(0.9, 1.1))
    words = (
        'aria-label="x &amp; y: a&lt;b&gt; auto 2.50, a&lt;b&gt; paper 2.00, c 1.25"'
    )
    for said in (">a&lt;b&gt;<", ">2.50<", ">2.00<", ">1.25<", words):
        assert said in drawing
    assert drawing.count("fill: var(--c0)") == drawing.count("fill: var(--c1)") == 1
    assert drawing.count("fill: none; stroke: var(--c0)") == 1  # the hollow bar
    curve = [("c", (1, 4, 16), (0.1, 0.2, 0.3))]
    drawn = page_charts.lines(curve, "x", "nodes", colours, log=True)
    assert all(f">{x}<" in drawn for x in ("1", "4", "16", "0.3", "nodes"))
    fixed = re.compile("(fill|stroke): *#")
    assert not fixed.search(drawing) and not fixed.search(drawn)
    assert fixed.search(drawing.replace("var(--c0)", "#2563eb"))


def test_long_names_are_broken():
    """Whole, in lines that fit; planted: a line of the whole name."""
    for name in ("parallel_prompt_decoding_with_trees", "x" * 45, "short"):
        lines = page_charts._broken(name)
        assert "".join(lines) == name
        assert max(map(len, lines)) <= page_charts.NAME
    assert len("parallel_prompt_decoding_with_trees") > page_charts.NAME


def test_lines_differ_without_their_colours():
    """Planted: one more line than there are markers and dashes."""
    looks = []
    for number in range(29):
        style = page_charts._style(number)
        looks.append((style["marker"], style["ls"]))
    assert len(set(looks[:28])) == 28 and len(set(looks)) == 28


def test_text_is_coloured_by_origin():
    sample = {
        "prompt": "a <b>",
        "pieces": ["x", "<y>", "z"],
        "origin": [0, 1, 9],
        "calls": 1,
        "loop_share": 0.5,
    }
    macros = html.TEMPLATES.get_template("page_macros.html.j2").module
    made = macros.coloured(html.sample(sample))
    assert 'class="o1" title="depth 1">&lt;y&gt;<' in made
    assert 'class="o6" title="depth 9">z<' in made and "a &lt;b&gt;" in made
    assert ">x<" in made and "2 of them drafted; 50 % is one exact" in made


def test_resume_repeats_nothing(config, tmp_path, lm, monkeypatch):
    real, made = measured_row.row, []

    def row(bench, cell, *rest):
        if len(made) == 1:
            raise KeyboardInterrupt
        made.append(cell.key)
        return real(bench, cell, *rest)

    monkeypatch.setattr(measured_row, "row", row)
    with pytest.raises(KeyboardInterrupt):
        execute(config, tmp_path, lm)
    first = (tmp_path / "rows" / f"{made[0]}.json").read_text()

    def second(bench, cell, *rest):
        made.append(cell.key)
        return real(bench, cell, *rest)

    monkeypatch.setattr(measured_row, "row", second)
    execute(config, tmp_path, lm)
    assert made == ["plain-text-t0-b1-s0", "prompt_lookup-text-t0-b1-s0"]
    assert (tmp_path / "rows" / f"{made[0]}.json").read_text() == first
    execute(config, tmp_path, lm)
    assert len(made) == 2 and len(list((tmp_path / "rows").iterdir())) == 2


def test_conflicting_config_is_refused(config, tmp_path):
    run_folder.RunFolder(tmp_path).claim(config, evaluate.STAGE.resumable_fields)
    with config.unlocked():
        config.methods = ("plain",)  # chooses rows
    run_folder.RunFolder(tmp_path).claim(config, evaluate.STAGE.resumable_fields)
    with config.unlocked():
        config.max_new_tokens = 25
    with pytest.raises(ConfigError, match="max_new_tokens: 24 -> 25"):
        run_folder.RunFolder(tmp_path).claim(config, evaluate.STAGE.resumable_fields)


def test_another_machine_is_refused(config, tmp_path):
    place = run_folder.RunFolder(tmp_path)
    common.provenance(place)
    file = tmp_path / "parts" / "provenance.json"
    kept = json.loads(file.read_text())
    kept["hardware"]["processor"] = "another"
    run_folder.write(file, kept)
    with pytest.raises(ConfigError, match="processor: another"):
        common.provenance(place)


def test_broken_piece_names_itself(tmp_path):
    place = run_folder.RunFolder(tmp_path)
    run_folder.text(tmp_path / "rows" / "x.json", "{")
    with pytest.raises(ConfigError, match=r"x.json.*delete"):
        place.get("rows", "x")


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("repeats", 0, "repeats=0"),
        ("batch", 3, "no multiple"),
        ("tasks", (), "need an entry"),
        ("tasks", ("poem",), "no task 'poem'"),
        ("trees", ("copyspec",), "config.trees"),
        ("task_methods", {"text": ("copyspec",)}, "task_methods"),
    ],
)
def test_bad_configs(config, tmp_path, lm, field, value, said):
    with config.unlocked():
        config[field] = value
    with pytest.raises(ConfigError, match=said):
        execute(config, tmp_path, lm)


def test_a_diffusion_model_is_another_study_s(config, tmp_path, lm):
    shape = dataclasses.replace(lm.model.config, mask_token=0)
    canvas = lm._replace(model=lm.model._replace(config=shape))
    with pytest.raises(ConfigError, match="is a diffusion model"):
        execute(config, tmp_path, canvas, {})


def test_random_prompts_need_no_tokenizer(config, tmp_path, lm):
    with pytest.raises(ConfigError, match="tokenizer"):
        execute(config, tmp_path, lm._replace(tokenizer=None))
