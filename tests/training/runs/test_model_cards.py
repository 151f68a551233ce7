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
DIFFUSION = {
    "start": "tiny",
    "diffusion": {
        "alignment": "shifted",
        "bidirectional": 0.5,
        "blocks": (4, 32),
        "block_size": 16,
        "anneal": 9600,
    },
}
BOUND = {"nats_per_token": 2.34567, "bits_per_byte": 1.23456, "error": 0.02345}
DENOISED = {
    "window": 256,
    "windows": 48,
    "bounds": {
        "bidirectional": {**BOUND, "draws": 128},
        "block_causal": {**BOUND, "nats_per_token": 2.2, "draws": 128},
    },
    "hits": {
        "bidirectional": {"0.15": 0.5, "0.5": 0.25, "0.85": 0.1255},
        "block_causal": {"0.15": 0.625, "0.5": 0.375, "0.85": 0.25},
    },
    "other": {"name": "tiny", "nats": 2.1},
    "infilling": {
        "matched": 0.4567,
        "exact": 0.125,
        "ahead": 0.2345,
        "cases": 32,
        "span": 8,
    },
    "repetition": 0.3456,
    "repetition_tokens": 64,
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


def test_the_card_of_a_diffusion_model(monkeypatch):
    """Bounds, hits, infilling and repetition. Planted: two bounds exchanged."""
    monkeypatch.setattr(platform, "python_version", lambda: "3.12.0")
    config = ConfigDict({**LANGUAGE_MODEL, **DIFFUSION})
    figures = {**TRAINED, **DENOISED}
    golden = (GOLDEN / "diffusion_model.md").read_text(encoding="utf-8")
    assert model_cards.diffusion_model(config, figures) == golden
    one, two = DENOISED["bounds"].items()
    exchanged = {one[0]: two[1], two[0]: one[1]}
    planted = model_cards.diffusion_model(config, {**figures, "bounds": exchanged})
    assert planted != golden
    alone = ConfigDict({**LANGUAGE_MODEL, **DIFFUSION, "start": ""})
    figures = {name: x for name, x in figures.items() if name != "other"}
    card = model_cards.diffusion_model(alone, figures)
    assert "trained from scratch" in card and "`tiny`" not in card


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
