"""Vocabularies of a study: texts of several forms, trained once a folder."""

import gzip
import json

import ml_collections
import pytest

from experiments.run_folder import RunFolder
from experiments.studies import constraint_peers, constraint_vocabularies
from models.errors import ConfigError, DataError


def fill(folder):
    with gzip.open(folder / "rows.jsonl.gz", "wt") as file:
        file.write(json.dumps({"text": "abab" * 50, "year": 1}) + "\n")
    (folder / "list.json").write_text(json.dumps([{"a": "cdcd" * 50}, ["efef"]]))
    (folder / "plain.txt").write_text("ghgh\nijij\n")


def test_texts_of_all_forms(tmp_path):
    """Planted: numbers and names of fields are no texts."""
    fill(tmp_path)
    read = constraint_vocabularies.texts(
        str(tmp_path), ["*.jsonl.gz", "*.json", "*.txt"]
    )
    assert list(read) == ["abab" * 50, "cdcd" * 50, "efef", "ghgh\n", "ijij\n"]
    with pytest.raises(DataError, match="has no nothing"):
        list(constraint_vocabularies.texts(str(tmp_path), ["nothing"]))


def test_a_vocabulary_is_trained_once(tmp_path, monkeypatch):
    """Bytes come back exactly. Planted: a second training fails."""
    fill(tmp_path)
    config = ml_collections.ConfigDict(
        {"data": "", "text": str(tmp_path), "texts": ("*.json",), "model": "tiny"}
    )
    store = RunFolder(tmp_path / "run")
    trained = constraint_vocabularies.made(config, store, 259)
    assert trained.size == 259 and trained.eos == (0,)
    vocabulary = constraint_peers.vocabulary(trained.file, trained.eos)
    assert len(vocabulary.tokens) == 259 and b"cd" in vocabulary.tokens
    ids = constraint_peers.spelling(trained.file).encode('{"é": 1}').ids
    assert b"".join(vocabulary.tokens[i] for i in ids).decode() == '{"é": 1}'
    config.texts = ("nothing",)
    assert constraint_vocabularies.made(config, store, 259) == trained
    with pytest.raises(DataError):
        constraint_vocabularies.made(config, store, 260)


def test_a_vocabulary_needs_texts(tmp_path):
    config = ml_collections.ConfigDict({"data": "", "text": "", "texts": ()})
    with pytest.raises(ConfigError, match=r"config\.text is empty"):
        constraint_vocabularies.made(config, RunFolder(tmp_path), 300)


def test_the_models_own_vocabulary(tmp_path):
    config = ml_collections.ConfigDict({"model": "tiny"})
    trained = constraint_vocabularies.made(
        config, RunFolder(tmp_path), constraint_vocabularies.OWN
    )
    vocabulary = constraint_peers.vocabulary(trained.file, trained.eos)
    assert trained.size == len(vocabulary.tokens) == 4096
