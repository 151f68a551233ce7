"""The stage `vocab_trim`: smaller draft vocabularies, and the draft as it is."""

import pytest

from experiments.measurement import machine
from experiments.recipes import settings
from experiments.reporting import report
from experiments.run_folder import RunFolder
from experiments.studies import vocab_trim
from models.errors import ConfigError
from tests.training.small_trainings import corpus, small, small_target  # noqa: F401
from training.runs import draft_model_run

SIZES = (2, 4000)


def recipe(source):
    c = settings.load("configs/studies/vocab_trim.py")
    c.data.source, c.sizes, c.length = source, SIZES, 2
    c.distill.update(prompts=4, held=2, prompt_tokens=8, new_tokens=6, batch=2)
    c.update(tasks=("text",), temperatures=(0.0,), prompts=2, batch=2)
    c.update(prompt_tokens=8, max_new_tokens=6)
    return c


@pytest.mark.long
def test_a_study_and_its_report(small, corpus, tmp_path, monkeypatch):  # noqa: F811
    """The target drafts for itself: its whole vocabulary has every draft accepted."""
    monkeypatch.setattr(machine, "last_level_cache", lambda: 2**20)
    c, place = recipe(corpus), RunFolder(tmp_path)
    found = vocab_trim.run(c, place, small, small)
    rows = {(r["tree"], r["size"]): r for r in found["trims"]}
    assert all(row["identical_to_plain"] for row in rows.values())
    whole = rows["whole", 4096]
    assert whole["calls"] == [2, 2] and whole["read"] == 1  # 6 tokens by 1 + 2 drafts
    for counts in ("target", "corpus"):
        few, most = (rows[counts, size] for size in SIZES)
        assert few["covered"] < most["covered"] <= 1 and few["read"] < most["read"] < 1
        assert sum(few["calls"]) > sum(whole["calls"])  # planted: all but 2 tokens gone
    made = report.write(place, settings.plain(c), found)
    text = (tmp_path / "report.md").read_text()
    assert made["trims"] and "| whole | 4096 | 100.0 % | 1.000 |" in text
    assert "plain decoding's texts: all are" in text
    never = lambda *_: pytest.fail("a finished row was measured again")
    monkeypatch.setattr(vocab_trim.tree_budget, "row", never)
    assert vocab_trim.run(c, place, small, small)["trims"] == found["trims"]


def test_only_the_targets_own_words_are_counted(small, corpus, tmp_path):  # noqa: F811
    """A prompt's tokens are not of the text that the target wrote."""
    c, place = recipe(corpus), RunFolder(tmp_path)
    counts, held = vocab_trim.counted(c, place, small)
    texts = draft_model_run.distill.read(tmp_path / "written" / "0-0.jsonl")
    assert counts["target"].sum() == sum(text.mask.sum() for text in texts) == 24
    assert held.sum() == 12 and counts["corpus"].sum() > 1000
    assert sum(len(text.tokens) for text in texts) == 24 + 4 * 8


def test_bad_sizes(small, tmp_path):  # noqa: F811
    c = recipe("")
    for wrong in ((), (1,), (4096,)):
        c.sizes = wrong
        with pytest.raises(ConfigError, match=r"config\.sizes"):
            vocab_trim.run(c, RunFolder(tmp_path), small, small)
    c.sizes, c.batch = (8,), 3
    with pytest.raises(ConfigError, match=r"config\.prompts=2"):
        vocab_trim.run(c, RunFolder(tmp_path), small, small)
