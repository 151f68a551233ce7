"""decoding/diffusion/README.md: its Python runs, block after block."""

import dataclasses
import pathlib
import re

import pytest

import decoding
import models
from decoding import recipes
from models import transformer
from training.runs import diffusion_model

PAGE = pathlib.Path(decoding.__file__).parent / "diffusion" / "README.md"


def untrained(load):
    """`models.load`, with `tiny` and an untrained row for the mask in one model."""

    def found(name, **fields):
        if name != "tiny_diffusion":
            return load(name, **fields)
        lm = load("tiny")
        size = lm.config.vocab_size
        config = dataclasses.replace(
            lm.config,
            vocab_size=size + 1,
            mask_token=size,
            visibility=("bidirectional", "block_causal"),
            alignment="shifted",
            block_size=16,
        )
        params = diffusion_model.extended(lm.params)
        return models.Loaded(transformer.transformer(config), params, lm.tokenizer)

    return found


@pytest.mark.long
def test_the_page_runs(capsys, monkeypatch):
    monkeypatch.setattr(models, "load", untrained(models.load))
    names: dict = {}
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    assert len(blocks) == 5
    for block in blocks:
        exec(compile(block, "the page", "exec"), names)
    one, many = names["one"], names["many"]
    assert (many.stats.target_calls <= one.stats.target_calls).all()
    assert names["drafted"].guarantee == "ARGMAX"
    assert capsys.readouterr().out
    with pytest.raises(NameError):  # planted: a block alone
        exec(compile(blocks[-1], "the page", "exec"), {})


def missing(text: str) -> list[str]:
    """Files and methods of a page that are not there."""
    root = PAGE.parents[2]
    files = re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py|(?:[a-z_]+/)+)`", text)
    folders = ("", "decoding", "decoding/diffusion")
    lost = [f for f in files if not any((root / d / f).exists() for d in folders)]
    named = re.findall(r"--method=(\w+)", text)
    return lost + [name for name in named if name not in recipes.names()]


def test_every_file_of_the_page_is_there():
    """Planted: one that is not, and a method without a recipe."""
    assert missing(PAGE.read_text()) == []
    assert missing("`decoding/canvas.py` --method=slow") == [
        "decoding/canvas.py",
        "slow",
    ]
