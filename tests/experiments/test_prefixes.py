"""The command of the prefix store, on files that were made by hand."""

import os

import numpy as np
import pytest

from decoding.serving import prefix_folder, prefix_rows
from decoding.serving.prefix_files import Content, write
from experiments import generate, prefixes
from models.errors import ConfigError, PromptError


def entry(folder, tokens: int, age: float) -> None:
    row = prefix_rows.Row(tuple(range(tokens)), -1, {"chunk": 128}, {}, {}, False)
    about, arrays = prefix_rows.content(row)
    file = folder / f"{prefix_folder.PrefixFolder(folder).name(row)}.safetensors"
    write(file, Content(about, {**arrays, "k": np.zeros(tokens, np.float32)}))
    stamp = file.stat().st_mtime - age
    os.utime(file, (stamp, stamp))


def test_list_verify_evict(tmp_path, capsys):
    """Planted: a flipped byte, which `verify` reports by its status."""
    entry(tmp_path, 128, 3 * prefixes.DAY)
    entry(tmp_path, 256, 0)
    run = lambda *words: (
        prefixes.main([*words, f"--folder={tmp_path}"]),
        capsys.readouterr().out,
    )
    status, shown = run("list")
    assert status == 0 and shown.index("256 tokens") < shown.index("128 tokens, raw")
    assert "2 entries" in shown and run("verify")[0] == 0
    assert run("evict", "--most_days=2")[1].startswith("removed 128 tokens")
    (file,) = tmp_path.iterdir()
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    status, shown = run("verify")
    assert status == 1 and "checksum" in shown and "1 damaged" in shown


def test_mistakes(capsys):
    for words in (["evict"], ["save", "--prompt=a", "--file=b"], ["calibrate"]):
        with pytest.raises((ConfigError, PromptError)):
            prefixes.body(words)
    assert prefixes.main(["evict"]) == 2 and "most_bytes" in capsys.readouterr().err


def test_generate_says_what_was_loaded():
    loaded = generate.read(["--prefixes=x"]).prefixes
    assert loaded == "x" and generate.read([]).prefixes is None
