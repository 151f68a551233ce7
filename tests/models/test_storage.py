"""Files on a disk and in a bucket: whole or not at all, lines, models."""

import os

import jax
import numpy as np
import pytest

import models
from models import storage
from models.distributed import processes
from models.errors import ConfigError, DecodaxError
from tests.buckets import bucket, emulator  # noqa: F401 (fixtures)


@pytest.fixture(params=["disk", "bucket"])
def folder(request, tmp_path):
    """A folder of either kind."""
    if request.param == "disk":
        return storage.path(tmp_path)
    return request.getfixturevalue("bucket")


def test_a_file_is_whole_or_not_there(folder):
    file = folder / "a" / "x.txt"
    with pytest.raises(KeyError), storage.new_file(file) as part:
        part.write_text("half")
        raise KeyError
    assert not file.exists() and storage.files(folder) == []
    storage.write(file, "old")
    with pytest.raises(KeyError), storage.new_file(file) as part:
        part.write_text("half")
        raise KeyError
    assert file.read_text() == "old" and storage.files(folder) == [file]
    storage.write(file, b"new\n")
    assert file.read_text() == "new\n" and storage.size(file) == 4
    with storage.local_copy(file) as copy:
        assert os.path.exists(copy) and copy.read_text() == "new\n"


def test_others_may_read_what_a_writer_keeps_to_itself(tmp_path):
    """As any new file. Planted: a writer such as safetensors', for its owner alone."""
    (tmp_path / "any").touch()
    with storage.new_file(tmp_path / "written") as part:
        part.touch(0o600)
        assert part.stat().st_mode != (tmp_path / "any").stat().st_mode
    assert (tmp_path / "written").stat().st_mode == (tmp_path / "any").stat().st_mode


def test_lines_grow_after_a_kill(folder, monkeypatch):
    """A torn last line is cut; what was there stays."""
    monkeypatch.setattr(storage, "UPLOAD_S", 0.0)
    file = folder / "x.jsonl"
    with storage.Lines(file) as lines:
        lines.write("1")
        lines.flush()
        assert file.read_text() == "1\n"
        lines.write("2")
    storage.write(file, "1\n2\n3")  # 3 was being written
    with storage.Lines(file) as lines:
        lines.write("4")
    assert file.read_text() == "1\n2\n4\n"


def test_a_bucket_is_not_written_at_every_line(bucket, monkeypatch):  # noqa: F811
    """Uploads are `UPLOAD_S` apart, but for `sync` and the end."""
    monkeypatch.setattr(storage, "UPLOAD_S", 1000.0)
    file = bucket / "x.jsonl"
    with storage.Lines(file) as lines:
        for i in range(3):
            lines.write(f"{i}")
            lines.flush()
        assert file.read_text() == "0\n"
        lines.sync()
        assert file.read_text() == "0\n1\n2\n"
        lines.write("3")
    assert file.read_text() == "0\n1\n2\n3\n"


def test_folders_move(folder):
    storage.write(folder / "a" / "b" / "x", "1")
    storage.write(folder / "a" / "y", "2")
    storage.move(folder / "a", folder / "c" / "d")
    there = [folder / "c" / "d" / "b" / "x", folder / "c" / "d" / "y"]
    assert storage.files(folder) == there and there[0].read_text() == "1"


def test_schemes():
    for bad in ("foo://b/x", "gs:/b/x"):
        with pytest.raises(ConfigError, match="gs://"):
            storage.path(bad)
    assert storage.remote(storage.path("gs://b/x"))
    assert not storage.remote(storage.path("b/x"))
    with pytest.raises(ConfigError, match="pip install adlfs"):
        storage.path("az://b/x")


def test_models_in_a_bucket(bucket):  # noqa: F811
    """In shards; read by ranges; the same weights, tokenizer and template."""
    lm = models.load("tiny-draft")
    models.save(lm, bucket / "model", 1 << 20)
    assert len(list((bucket / "model").glob("*.safetensors"))) > 1
    again = models.load(str(bucket / "model"), dtype=np.float32)
    same = jax.tree.map(np.array_equal, lm.params, again.params)
    assert all(jax.tree.leaves(same))
    assert again.tokenizer.encode("def f(x):") == lm.tokenizer.encode("def f(x):")
    assert again.config == lm.config


def test_what_one_process_says(monkeypatch):
    """Process 0 reads, and its words, or its failure, reach process 1."""
    said = []

    def broadcast(value):
        if processes.leads():
            said.append(value)
            return value
        return said.pop(0)

    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(processes.multihost_utils, "broadcast_one_to_all", broadcast)

    def both(make):
        results = []
        for index in range(2):
            monkeypatch.setattr(jax, "process_index", lambda index=index: index)
            try:
                results.append(processes.told(make))
            except (KeyError, DecodaxError) as error:
                results.append(error)
        return results

    assert both(lambda: {"a": [1, 2]}) == [{"a": [1, 2]}] * 2

    def fails():
        raise KeyError("x")

    first, second = both(fails)
    assert type(first) is KeyError
    assert type(second) is DecodaxError and "KeyError: 'x'" in str(second)
