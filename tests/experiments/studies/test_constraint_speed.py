"""Decoding speed of a small model under a constraint."""

import json
from dataclasses import replace

import ml_collections
import pytest

from experiments.run_folder import RunFolder
from experiments.studies import constraint_peers, constraint_speed
from models import transformer


@pytest.fixture(scope="module")
def ending(lm):
    """The model with an end of sequence, which a grammar needs."""
    model = transformer.transformer(replace(lm.model.config, eos=(0,)))
    return lm._replace(model=model)


def config(**fields):
    schema = {"type": "array", "minItems": 40, "items": {"type": "boolean"}}
    fields = {"tokens": 8, "repeats": 2, "batches": (1,), "prompt": "a", **fields}
    return ml_collections.ConfigDict({"speed_schema": json.dumps(schema), **fields})


def test_arms_write_alike_many_tokens(ending, tmp_path, monkeypatch):
    """Planted: the text without a constraint is no array."""
    installed = lambda package: not package
    monkeypatch.setattr(constraint_peers, "is_installed", installed)
    rows = constraint_speed.measured(config(), RunFolder(tmp_path), lambda: ending)
    assert [row["arm"] for row in rows] == [constraint_speed.PLAIN, "device"]
    for row in rows:
        assert row["batch"] == 1 and len(row["runs"]) == 2 and row["host_syncs"] == 0
    assert [new for _, new in rows[1]["runs"]] == [8, 8]
    text = lambda name: constraint_speed.decode(config(), ending, 1, name).texts[0]
    assert text("device").lstrip()[:1] in ("[", "")
    assert text(constraint_speed.PLAIN).lstrip()[:1] not in ("[", "")
    again = constraint_speed.measured(config(), RunFolder(tmp_path), lambda: 1 / 0)
    assert again == rows


def test_the_host_is_asked_in_every_round(ending):
    """Planted: the device's form asks it never."""
    pytest.importorskip("llguidance")
    out = constraint_speed.decode(config(), ending, 1, "host")
    assert out.stats.host_syncs > 0
    assert constraint_speed.decode(config(), ending, 1, "device").stats.host_syncs == 0
