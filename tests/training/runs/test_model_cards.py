"""Model cards of fixed figures, against texts that are kept in tests/golden."""

import pathlib
import platform

import jinja2
import pytest
from ml_collections import ConfigDict

from training.runs import model_cards

GOLDEN = pathlib.Path(__file__).parents[2] / "golden" / "model_cards"
LANGUAGE_MODEL = {
    "name": "small",
    "model": {
        "d_model": 256,
        "n_layers": 8,
        "n_heads": 8,
        "n_kv_heads": 2,
        "head_dim": 32,
        "d_ff": 512,
        "max_positions": 4096,
    },
    "data": {
        "source": "texts",
        "vocab_size": 4096,
        "stages": ((150, 12, 512), (8, 2, 4096)),
        "repeat_share": 0.455,
    },
    "train": {"warmup": 40, "decay": 900},
    "card": {
        "language": "code",
        "license": "psf-2.0",
        "about": "Python <source> & tests",
        "origin": "the library of CPython {python}",
        "licence": "Terms of {that} text apply.",
    },
    "command": "python -m experiments.run --config=small.py",
    "hardware": "2 CPU cores",
    "notes": "",
}
TRAINED = {
    "parameters": 1234567,
    "embedding": 65536,
    "train_files": 1200,
    "held_files": 34,
    "train_tokens": 9876543,
    "steps": 6000,
    "seen_tokens": 1000000,
    "epochs": 1.256,
    "hours": 0.517,
    "bits": 1.23456,
    "nats": 2.34567,
    "held_tokens": 45678,
    "held_bytes": 123456,
    "window": 2048,
    "context": 512,
    "seen": "\n# copy é\n",
    "seen_matched": 60.0,
    "seen_prefix": 12.5,
    "unseen": "it's <new>",
    "unseen_matched": 7.5,
    "unseen_prefix": 3.0,
    "cases": 64,
    "copy_of": 60,
}
HEADS = {
    "name": "hydra",
    "model": "tiny",
    "seed": 7,
    "export_dtype": "bfloat16",
    "data": {"source": "texts"},
    "evaluate": {
        "temperature": 0.8,
        "prompts": 8,
        "prompt_tokens": 64,
        "new_tokens": 48,
        "tokens": 16384,
    },
}
MEASURED = {
    "head": "hydra",
    "parameters": 98765,
    "steps": 1250,
    "seen_tokens": 2560000,
    "seconds": 123.5,
    "untrained": {"tau": 1.0, "top1_1": 0.006, "top1_0": 0.001, "top2_0": 0.5},
    "trained": {"tau": 2.3456, "top1_0": 0.654, "top1_1": 0.406, "top8_0": 0.9},
}


@pytest.mark.parametrize("notes", ["", "Noted."])
def test_the_card_of_a_language_model(notes, monkeypatch):
    """Character by character; planted: a figure that another digit would round to."""
    monkeypatch.setattr(platform, "python_version", lambda: "3.12.0")
    config = ConfigDict({**LANGUAGE_MODEL, "notes": notes})
    name = "language_model_notes.md" if notes else "language_model.md"
    golden = (GOLDEN / name).read_text(encoding="utf-8")
    assert model_cards.language_model(config, TRAINED) == golden
    planted = {**TRAINED, "bits": 1.23466}
    assert model_cards.language_model(config, planted) != golden


def test_the_card_of_draft_heads():
    """Depths in order, first guesses alone; planted: the figures exchanged."""
    golden = (GOLDEN / "draft_head.md").read_text(encoding="utf-8")
    assert model_cards.heads(ConfigDict(HEADS), MEASURED) == golden
    exchanged = {"untrained": MEASURED["trained"], "trained": MEASURED["untrained"]}
    assert model_cards.heads(ConfigDict(HEADS), MEASURED | exchanged) != golden


def test_a_missing_figure_is_an_error():
    """A card has no empty places."""
    without = {name: x for name, x in MEASURED.items() if name != "head"}
    with pytest.raises(jinja2.UndefinedError, match="head"):
        model_cards.heads(ConfigDict(HEADS), without)
