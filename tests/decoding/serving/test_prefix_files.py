"""Files of prefixes: whatever is not what was written is refused."""

import jax.numpy as jnp
import numpy as np
import pytest

from decoding.serving import prefix_files
from decoding.serving.prefix_files import Content, Damaged

ARRAYS = {
    "a": np.arange(6, dtype=np.int32).reshape(2, 3),
    "b": np.ones((1, 0, 4), jnp.bfloat16),
    "c": np.asarray(True),
    "d": np.linspace(0, 1, 5).astype(jnp.bfloat16),
}
DATA = prefix_files.encoded(Content({"n": 1, "text": "ü"}, ARRAYS))


def test_contents_come_back(tmp_path):
    file = tmp_path / "sub" / "x.safetensors"
    assert prefix_files.write(file, Content({"n": 1}, ARRAYS)) == file.stat().st_size
    about, arrays = prefix_files.read(file)
    assert about == {"n": 1} == prefix_files.about(file)
    for name, x in ARRAYS.items():
        assert arrays[name].dtype == x.dtype and arrays[name].shape == x.shape
        assert (arrays[name] == x).all()
    assert [p.name for p in file.parent.iterdir()] == [file.name]


def test_safetensors_reads_them(tmp_path):
    """The format is the published one."""
    numpy = pytest.importorskip("safetensors.numpy")
    arrays = {name: ARRAYS[name] for name in ("a", "c")}
    found = numpy.load(prefix_files.encoded(Content({}, arrays)))
    assert (found["a"] == ARRAYS["a"]).all()


def flipped(at: int) -> bytes:
    data = bytearray(DATA)
    data[at] ^= 1 << at % 8
    return bytes(data)


def refused(data: bytes, check: bool = True) -> bool:
    try:
        prefix_files.decoded(data, check)
    except Damaged:
        return True
    return False


def test_every_flipped_byte_is_noticed():
    """In the header, its length and the arrays; planted: the checksum skipped."""
    assert not refused(DATA)
    assert all(refused(flipped(at)) for at in range(len(DATA)))
    unseen = [at for at in range(len(DATA)) if not refused(flipped(at), check=False)]
    assert len(unseen) > 30 and len(DATA) - 1 in unseen


def test_every_torn_file_is_noticed():
    """Cut anywhere, or longer than it was."""
    assert all(refused(DATA[:size]) for size in range(len(DATA)))
    assert refused(DATA + b"\0")
    assert refused(b"{}" * 40) and refused(b"") and refused(b"\xff" * 64)


def test_a_killed_writer_leaves_no_file(tmp_path, monkeypatch):
    """The name appears last; planted: a file that was written in place."""

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(prefix_files.os, "fsync", killed)
    file = tmp_path / "x.safetensors"
    with pytest.raises(KeyboardInterrupt):
        prefix_files.write(file, Content({}, ARRAYS))
    assert not file.exists()
    file.write_bytes(DATA[:-1])
    with pytest.raises(Damaged):
        prefix_files.read(file)
