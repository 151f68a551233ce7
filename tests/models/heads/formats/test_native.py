"""The heads that ship with `tiny`: theirs, small, lossless, and worth decoding with."""

import functools
import pathlib

import jax
import pytest

import decoding
import models
from models import packaged
from models.errors import CheckpointError
from models.heads.formats import native

PROMPTS = ["def read_config(path):\n    with open(", "class Stack:\n"]
NEW = 32


@functools.cache
def tiny() -> models.Loaded:
    return models.load("tiny")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=() if "fspad" in n else pytest.mark.long)
        for n in packaged.HEADS
    ],
)
def test_they_are_small_and_say_what_they_are(name: str) -> None:
    """At most 8 MB of bfloat16 with a card; only for the target they were made of."""
    folder = native.locate(name)
    assert sum(file.stat().st_size for file in folder.iterdir()) <= 8_000_000
    kinds = {str(x.dtype) for x in jax.tree.leaves(native.load(name))}
    assert "bfloat16" in kinds and "float32" not in kinds
    card = (folder / "README.md").read_text()
    assert "`tiny`" in card and "tokens per target call" in card
    native.load(name, tiny())
    with pytest.raises(CheckpointError, match="train heads for it"):
        native.load(name, models.load("tiny-draft"))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=() if "fspad" in n else pytest.mark.long)
        for n in packaged.HEADS
    ],
)
def test_they_draft_for_tiny_without_changing_its_text(name: str) -> None:
    """Plain decoding's text at T = 0.8, two ragged rows, in fewer target calls.

    An untrained head of either kind gives 1.05 to 1.2 tokens a call (compare.md); the
    same heads with their weights zeroed are the planted fault.
    """
    lm = tiny()
    method = decoding.Method.from_config(native.method(name))
    run = functools.partial(
        decoding.generate, lm, PROMPTS, max_new_tokens=NEW, temperature=0.8, seed=3
    )
    heads = native.load(name, lm)
    drafted = run(method=method, drafts={"heads": heads})
    assert drafted.tokens == run().tokens
    assert drafted.stats.tokens_per_call > 1.3
    nothing = {**heads, **jax.tree.map(lambda x: 0 * x, heads)}
    fault = run(method=method, drafts={"heads": nothing})
    assert fault.tokens == drafted.tokens
    assert fault.stats.tokens_per_call < drafted.stats.tokens_per_call - 0.1


def test_an_installation_brings_them() -> None:
    """Every file of every packaged model is named in setup.py's `package_data`."""
    root = pathlib.Path(packaged.__file__).parent
    assert '"packaged/*/*"' in (root.parents[1] / "setup.py").read_text()
    for folder in packaged.HEADS.values():
        assert (root / folder).is_dir()
