"""A datastore of keys on disk: written, loaded, and refused where it does not fit."""

import json
import types

import jax
import numpy as np
import pytest

from decoding.text_lookup import key_store
from models.errors import MethodError
from models.synthetic import toy

MODEL, PARAMS = toy.model()
LM = types.SimpleNamespace(model=MODEL, params=PARAMS)
WIDTH, VOCAB = MODEL.config.d_model, MODEL.config.vocab_size
KEYS = np.random.default_rng(0).normal(size=(6, WIDTH))
VALUES = np.asarray([0, 1, 2, 3, 4, 4])


@pytest.fixture
def folder(tmp_path):
    key_store.save(tmp_path / "store", LM, KEYS, VALUES, "toy")
    return tmp_path / "store"


def test_what_is_written_is_loaded(folder):
    keys = np.load(folder / "keys.npy", allow_pickle=False)
    values = np.load(folder / "values.npy", allow_pickle=False)
    assert (keys.dtype, values.dtype) == (np.float16, np.int32)
    store = key_store.load(folder, LM, 3)
    assert store.about == json.loads((folder / "meta.json").read_text())
    assert (store.about["model"], store.about["tokens"]) == ("toy", 6)
    np.testing.assert_array_equal(store.drafts["knn"][0].keys, np.float16(KEYS))
    np.testing.assert_array_equal(store.drafts["knn"][0].values, VALUES)
    stream = store.streams["knn"]
    assert (stream.taps, stream.params) == (("ffn_input",), "knn")
    assert stream == key_store.load(folder, LM, 3).streams["knn"]  # one program
    assert stream != key_store.load(folder, LM, 4).streams["knn"]


def test_other_weights_are_refused(folder):
    """Planted: one weight of the model is another, and its dtype."""
    others = {**PARAMS, "table": PARAMS["table"].at[0, 0].add(1e-3)}
    half = jax.tree.map(lambda x: x.astype(np.float16), PARAMS)
    for params in (others, half):
        wrong = types.SimpleNamespace(model=MODEL, params=params)
        with pytest.raises(MethodError, match=r"'toy' in float32.*checksum"):
            key_store.load(folder, wrong)
    key_store.load(folder, LM)


def damaged(folder, name: str, data) -> None:
    if name.endswith("json"):
        about = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**about, **data}))
    else:
        np.save(folder / name, data)


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("meta.json", {"tokens": 5}, "has .5, "),
        ("keys.npy", np.zeros((6, WIDTH + 1), np.float16), "keys of shape"),
        ("keys.npy", np.zeros((6, WIDTH), np.float32), "type float32"),
        ("values.npy", VALUES[:5].astype(np.int32), "values of shape"),
        ("values.npy", VALUES.astype(np.int32) + 1, f"to {VOCAB}, outside"),
    ],
)
def test_files_that_do_not_match_are_refused(folder, name, data, words):
    damaged(folder, name, data)
    with pytest.raises(MethodError, match=words):
        key_store.load(folder, LM)


@pytest.mark.parametrize("name", ["keys.npy", "values.npy", "meta.json"])
def test_missing_files_name_the_command(folder, name):
    (folder / name).unlink()
    with pytest.raises(MethodError, match=rf"{name}.*experiments\.knn_datastore"):
        key_store.load(folder, LM)


def test_a_file_of_another_kind_is_refused(folder):
    (folder / "keys.npy").write_text("no array")
    with pytest.raises(MethodError, match=r"keys\.npy is not an array file"):
        key_store.load(folder, LM)


def test_what_cannot_be_keys_is_refused(tmp_path):
    with pytest.raises(MethodError, match="exceed 65504"):
        key_store.save(tmp_path, LM, KEYS * 1e6, VALUES, "toy")
    with pytest.raises(MethodError, match="would be empty"):
        key_store.save(tmp_path, LM, KEYS[:0], VALUES[:0], "toy")
    assert not list(tmp_path.iterdir())


def test_numbers_of_neighbours_are_checked(folder):
    with pytest.raises(MethodError, match="k=0"):
        key_store.load(folder, LM, 0)
