"""Models, heads and tokenizers by their names on a hub: a small server of this process.

The server redirects to weights as the hub does; see `hub_server.py`.
"""

import dataclasses
import os
import pathlib
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest
from huggingface_hub import constants

import models
from experiments.preflight import programs
from experiments.studies import replay
from models import packaged
from models.checkpoints import hub
from models.errors import CheckpointError
from models.heads.formats import native, published
from tests.models.checkpoints.hub_server import Hub, forget, online  # noqa: F401
from training.data import train_bpe

GOLDEN = pathlib.Path(__file__).parents[2] / "golden" / "models"
NAME = "lab/small"
NOWHERE = "http://127.0.0.1:9"  # no server listens there
SHARDS = [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
# Files of the repository that are no part of the model.
OTHERS = ("pytorch_model.bin", "consolidated.safetensors", "README.md")


@pytest.fixture
def repository(online, tmp_path) -> Hub:  # noqa: F811
    """A hub with the model `lab/small`, in three shards."""
    folder = tmp_path / "small"
    shutil.copytree(GOLDEN / "llama3", folder)
    (folder / "onnx").mkdir()
    for name in (*OTHERS, "onnx/config.json"):
        (folder / name).write_text("{}")
    online.folders[NAME] = folder
    return online


def is_equal(a: models.Loaded, b: models.Loaded) -> bool:
    return jax.tree.all(jax.tree.map(np.array_equal, a.params, b.params))


def refused(name: str, *words: str, revision: str | None = None) -> None:
    """`models.load` fails with an error that holds all words."""
    with pytest.raises(CheckpointError) as caught:
        models.load(name, revision=revision)
    missing = [word for word in words if word not in str(caught.value)]
    assert not missing, str(caught.value)


def test_a_model_by_its_name_is_the_model_of_its_folder(repository):
    """Params and tokenizer are equal, and only files of the model were sent."""
    lm, other = models.load(NAME), models.load(repository.folders[NAME])
    assert lm.config == other.config and is_equal(lm, other)
    assert lm.tokenizer.digest == other.tokenizer.digest
    assert lm.tokenizer.template == other.tokenizer.template is not None
    files = {p.name for p in repository.folders[NAME].iterdir() if p.is_file()}
    assert repository.downloaded() == sorted(files - set(OTHERS))
    # Planted: one changed weight.
    layer = jax.tree.map(lambda x: x + 1, lm.params["layer_2"])
    changed = dataclasses.replace(lm, params={**lm.params, "layer_2": layer})
    assert not is_equal(changed, other)


def test_the_cache_serves_a_process_without_a_network(repository, monkeypatch):
    folder = hub.local(f"{NAME}@v1")
    sent = len(repository.asked)
    assert hub.local(NAME, "v1") == folder
    assert len(repository.asked) == sent  # a process resolves a name once
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    forget()
    assert hub.local(NAME, "v1") == folder and len(repository.asked) == sent
    # The revision main is not in the cache.
    refused(NAME, "HF_HUB_OFFLINE is set", "without HF_HUB_OFFLINE")
    (folder / SHARDS[1]).unlink()  # as after an interrupted download
    forget()
    refused(f"{NAME}@v1", constants.HF_HUB_CACHE)


def test_an_interrupted_download_resumes(repository):
    """The second call fetches the refused shard alone."""
    repository.broken.add(SHARDS[1])
    refused(NAME, "refuses the token")
    first = repository.downloaded()
    assert SHARDS[1] not in first
    repository.broken.clear()
    models.load(NAME)
    rest = repository.downloaded()
    for name in first:
        rest.remove(name)
    assert SHARDS[1] in rest and len(first) + len(rest) == len(set(first + rest))


def test_no_network(repository, tmp_path, monkeypatch):
    """The cache serves with HF_HUB_OFFLINE, and without it where no server answers."""
    hub.local(NAME)
    variables = {
        "HF_HUB_CACHE": constants.HF_HUB_CACHE,
        "HF_HUB_OFFLINE": "1",
        "HF_ENDPOINT": NOWHERE,
    }
    code = f"from models.checkpoints import hub; print(hub.local({NAME!r}))"
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.strip() == str(hub.local(NAME))
    monkeypatch.setattr(constants, "ENDPOINT", NOWHERE)
    forget()
    assert str(hub.local(NAME)) == run.stdout.strip()
    refused("lab/other", "cannot be reached", "check the network", "give their path")


@pytest.mark.parametrize(
    "name,revision,words",
    [
        ("lab/smoll", None, ("no file or directory", "correct the name", "HF_TOKEN")),
        (NAME, "v9", ("no revision 'v9'", "branch, tag or commit")),
        (f"{NAME}@v9", "v1", ("two revisions",)),
        ("lab/gated", None, ("is gated", "accept its terms", "/lab/gated", "HF_TOKEN")),
        ("lab/private", None, ("HF_TOKEN if it is private",)),
        ("lab/pickled", None, ("no safetensors", "pickles can run code")),
        ("tiny", "v1", ("revision='v1'", "leave the revision out")),
        ("a/b/c", None, ("no model 'a/b/c'", "directory in HF layout", "tiny")),
        ("../small", None, ("no model '../small'",)),
    ],
)
def test_mistakes_are_named_with_a_remedy(repository, tmp_path, name, revision, words):
    folder = repository.folders[NAME]
    repository.folders |= dict.fromkeys(("lab/gated", "lab/private"), folder)
    repository.gated.add("lab/gated")
    repository.private["lab/private"] = "secret"
    repository.folders["lab/pickled"] = tmp_path / "pickled"
    (tmp_path / "pickled").mkdir()
    (tmp_path / "pickled" / "pytorch_model.bin").write_text("")
    refused(name, *words, revision=revision)


def test_a_private_repository_is_read_with_the_token(repository, monkeypatch):
    repository.private[NAME] = "secret"
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert (hub.local(NAME) / "config.json").exists()


def test_a_directory_comes_before_a_repository(repository, tmp_path, monkeypatch):
    """A relative path with one slash is a name only where nothing lies there."""
    (tmp_path / NAME).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert hub.local(NAME) == pathlib.Path(NAME) and not repository.asked
    assert hub.local(pathlib.Path("lab/other")) == pathlib.Path("lab/other")


def test_shapes_and_tokenizers_download_no_weights(repository):
    shape = programs.shape_at(NAME)
    tokenizer = replay.read_tokenizer(f"{NAME}@v1")
    assert shape.vocab_size >= tokenizer.vocab_size
    assert train_bpe.load(NAME).to_str() == tokenizer.inner.to_str()
    assert not any("safetensors" in name for name in repository.downloaded())


def test_heads_by_their_name(online):  # noqa: F811
    """Native heads give params and method; other layouts have their own loaders."""
    online.folders["lab/heads"] = packaged.folder("tiny-eagle2")
    expected = native.load("tiny-eagle2")
    params = native.load("lab/heads@v1")
    assert jax.tree.all(jax.tree.map(np.array_equal, params, expected))
    assert native.method("lab/heads@v1") == native.method("tiny-eagle2")
    with pytest.raises(CheckpointError, match=r"holds no heads.safetensors \(did"):
        native.load("tiny-eagel3")
    online.folders["lab/medusa"] = GOLDEN / "llama2"
    with pytest.raises(CheckpointError, match=r"published reads other layouts"):
        native.load("lab/medusa")
    with pytest.raises(CheckpointError, match="not one of medusa heads"):
        published.load("medusa", "lab/medusa", models.load("tiny").config)
