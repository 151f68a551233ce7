"""The stage `official`: rates beside those of the official codes, by hand."""

import json
import types

import numpy as np
import pytest

from decoding import Method
from experiments import run_folder
from experiments.measurement import machine
from experiments.recipes import settings
from experiments.reporting import report
from experiments.studies import official
from models.errors import CheckpointError, ConfigError

LOOP, FREE = [5] * 8, [1, 2, 3, 4, 5, 6, 7, 8]
PLAIN = [LOOP, FREE]
OURS = {"lookup_2": [{"calls": [2, 4], "tokens": PLAIN}]}


def peers_file(folder, **changed):
    """A file of one method's official run, with other calls or texts."""
    one = {"calls": [2, 5], "tokens": [[*LOOP, 9], FREE], **changed}
    path = folder / "peers.json"
    path.write_text(json.dumps({"lookup_2": {"code": "code 1", "runs": [one]}}))
    return str(path)


def test_rates_by_hand(tmp_path):
    peers = official.read(peers_file(tmp_path), ("lookup_2",), PLAIN)
    whole, free = official.compared(OURS, peers, PLAIN)
    assert (whole["prompts"], free["prompts"]) == ("all (2)", "loop-free (1)")
    assert (whole["official"], whole["ours"]) == (16 / 7, 16 / 6)
    assert (free["official"], free["ours"]) == (8 / 5, 8 / 4)
    assert (whole["ratio"], free["ratio"]) == (7 / 6, 5 / 4)
    assert (whole["same_calls"], free["same_calls"]) == (1, 0)
    assert whole["is_plain"] and free["is_plain"]
    (section,) = official.sections({"official": [whole, free]})
    assert section.lines[0][4:7] == ["2.286", "2.667", "1.167"]
    column = official.HEADS.index("ratio")
    assert section.mark(0, column) == "good"
    worse = official.compared(OURS, {}, PLAIN)[0]
    assert worse["ratio"] is None
    assert official.cells(worse)[3:7] == ["–, 1", "–", "2.667", "–"]


def test_fault_an_official_text_that_is_not_plain_decodings(tmp_path):
    """Planted: its last token; fewer calls then prove nothing, and the page says so."""
    other = [LOOP, [*FREE[:-1], 9]]
    peers = official.read(peers_file(tmp_path, tokens=other), ("lookup_2",), PLAIN)
    rows = official.compared(OURS, peers, PLAIN)
    assert not any(row["is_plain"] for row in rows)
    (section,) = official.sections({"official": rows})
    assert section.lines[0][-1] == "DIFFERENT"
    assert section.mark(0, official.HEADS.index("text")) == "bad"


def test_forms_of_a_code_have_rows_of_their_own():
    """Planted: a form whose method is not measured has none."""
    one = {"code": "c", "runs": OURS["lookup_2"]}
    names = ("lookup_2", "lookup_2/repaired", "lookup_3/repaired")
    rows = official.compared(OURS, dict.fromkeys(names, one), PLAIN)
    assert [row["method"] for row in rows[::2]] == [*names[:2]]
    assert all(row["ratio"] == 1 for row in rows)


def test_fault_a_method_below_the_official_code_is_marked():
    """Planted: the two columns of calls exchanged."""
    peers = {"lookup_2": {"code": "c", "runs": OURS["lookup_2"]}}
    slower = {"lookup_2": [{"calls": [3, 4], "tokens": PLAIN}]}
    rows = official.compared(slower, peers, PLAIN)
    (section,) = official.sections({"official": rows})
    assert section.mark(0, official.HEADS.index("ratio")) == "bad"


@pytest.mark.parametrize(
    "changed", [{"calls": [2]}, {"tokens": [LOOP[:-1], FREE]}, {"tokens": [LOOP]}]
)
def test_fault_calls_of_other_prompts_are_refused(tmp_path, changed):
    """Planted: a prompt is missing, or a text ended early."""
    with pytest.raises(ConfigError, match="lookup_2"):
        official.read(peers_file(tmp_path, **changed), ("lookup_2",), PLAIN)


def test_wrong_files_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="no method 'lookup_2'"):
        official.read(peers_file(tmp_path), ("assisted",), PLAIN)
    with pytest.raises(CheckpointError, match="cannot be read"):
        official.read(str(tmp_path / "absent.json"), (), PLAIN)


def test_run_writes_its_report(tmp_path, monkeypatch):
    """With counts of our own; planted: the peers file is not read."""
    config = settings.load("configs/studies/official.py")
    config.methods, config.peers = ("lookup_2",), peers_file(tmp_path)
    runs = {"plain": [{"calls": [8, 8], "tokens": PLAIN}], **OURS}
    monkeypatch.setattr(official, "_prompts", lambda config, lm: PLAIN)
    monkeypatch.setattr(official, "write", lambda *_: {})
    monkeypatch.setattr(official, "counted", lambda *call: runs[call[3]])
    rate = {"gb_s": 9.5, "readers": {"sum": 9.5}, "bytes": 2**28}
    monkeypatch.setattr(machine, "bandwidth", lambda: rate)
    for name, line in (("a", "2.286 | 2.667 | 1.167"), ("b", "– | 2.667 | –")):
        store = run_folder.RunFolder(tmp_path / name)
        found = official.run(config, store, lm=object())
        report.write(store, settings.plain(config), found)
        assert line in (tmp_path / name / "report.md").read_text()
        config.peers = ""


@pytest.mark.parametrize("kept, memories", [(("m",), [None, 1]), ((), [None, None])])
def test_memory_outlives_a_prompt_of_kept_methods_alone(monkeypatch, kept, memories):
    seen = []

    def generate(lm, prompts, *_, memory=None, width=None, **settings):
        assert width == "paper"
        seen.append(memory)
        counts = types.SimpleNamespace(target_calls=np.asarray([len(seen)]))
        return types.SimpleNamespace(stats=counts, tokens=[[7]], memory=len(seen))

    monkeypatch.setattr(official, "generate", generate)
    config = types.SimpleNamespace(seed=0, seeds={}, kept=kept, max_new_tokens=1)
    runs = official.counted(config, None, [[1], [2]], "m", Method(), {})
    assert runs == [{"calls": [1, 2], "tokens": [[7], [7]]}] and seen == memories


def test_the_recipe_has_the_settings_of_the_official_codes():
    recipe = settings.load("configs/studies/official.py")
    assert recipe.stage == "official" and {*recipe.kept} < {*recipe.methods}
    assert {*recipe.seeds} < {*recipe.variants}
    assert recipe.variants["eagle3_tree"]["topology"]["nodes"] == 60
