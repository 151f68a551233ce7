"""The stage `tpu_compilation`: its table, and what it says without libtpu."""

import json
import sys

import pytest

from experiments import run
from experiments.recipes import settings
from experiments.run_folder import RunFolder
from experiments.studies.kernels import tpu_compilation
from models.errors import ConfigError

ROW = {
    "chip": "v4",
    "model": "8B",
    "size": 8192,
    "nodes": 64,
    "batch": 8,
    "heads": 8,
    "block": 256,
    "passes": 1,
    "vmem": 12 * 2**20,
    "budget": 16 * 2**20,
    "moved": 264 * 2**20,
    "least": 240 * 2**20,
    "copies": 0,
    "seconds": 1.0,
}
COUNT = {
    "chip": "v5e",
    "groups": 1,
    "nodes": 64,
    "heads": 1,
    "block": 512,
    "bytes": 2**18,
    "whole": 1809,
    "masked": 2279,
    "copy": 480.1,
    "products": 0.0,
}
PAGES = {
    "chip": "v5e",
    "nodes": 16,
    "page": 32,
    "bytes": 2**19,
    "whole": 818,
    "masked": 1639,
    "copy": 960.1,
    "products": 255.0,
}
COLUMNS = {
    "chip": "v6e",
    "groups": 8,
    "queries": 32,
    "known": False,
    "heads": 8,
    "block": 1024,
    "bytes": 2**21,
    "sweeps": [2583, 2353],
    "copy": 0.0,
    "products": 0.0,
    "moved": 264 * 2**20,
    "keys": 128 * 2**20,
}


MASKS = {
    "chip": "v5e",
    "vocab": 4096,
    "ends": 74,
    "read": 256,
    "pairs": 256,
    "nodes": 1,
    "operations": 46,
    "bundles": 12113,
    "scatters": 4246,
    "gathers": 5494,
    "turn_operations": 23,
    "turn_bundles": 11912,
    "copied": 2**20,
    "estimate": 9126,
    "seconds": 16e-6,
    "logsumexp_seconds": 0.25e-6,
}


def test_report_by_hand():
    report = {
        "hardware": {"processor": "P", "cores": 2, "devices": 1, "device": "cpu"},
        "versions": {"jax": "0.10.2", "libtpu": "0.0.42"},
        "command": "python -m experiments.run --config=configs/studies/kernels.py",
        "compiled": [ROW],
        "bundles": [COUNT],
        "pages": [PAGES],
        "columns": [COLUMNS, {**COLUMNS, "known": True, "sweeps": [2318]}],
        "masks": [MASKS],
        "times": [
            {"form": "xla", "nodes": 1, "ms": 2.0, "gb_s": 10.0},
            {"form": "xla", "nodes": 64, "ms": 5.0, "gb_s": 4.0},
        ],
    }
    text = tpu_compilation.markdown(report)
    row = "| v4 | 8B | 8192 | 64 | 8 | 8 heads × 256 slots | 1 | 12.0 | 16 | 264.0 |"
    assert f"{row} 1.100 | 0 |" in text
    count = "| v5e | 1 | 64 | 1 heads × 512 slots | 256 | 1,809 | 2,279 | 480 | – |"
    assert count in text
    assert "| v5e | 16 | 32 | 512 | 818 | 1,639 | 960 | 255 | 1.60 |" in text
    sums = "| v6e | 8 | 32 | computed | 8 heads × 1024 slots | 2,048 | 2,583 | 2,353 |"
    assert f"{sums} – | – | 264.0 | 2.062 |" in text
    assert "| given | 8 heads × 1024 slots | 2,048 | – | 2,318 |" in text
    assert "| xla | 64 | 5.00 | 4.0 | 2.50 |" in text
    assert "| 23 | 11,912 | 1.00 | 9,126 | 16.00 | 0.25 |" in text
    assert "libtpu 0.0.42" in text and report["command"] in text


def test_the_command_stands_in_the_report(tmp_path):
    hardware = {"processor": "P", "cores": 2, "devices": 1, "device": "cpu"}
    found = {"hardware": hardware, "versions": {}, "compiled": [ROW], "times": []}
    found |= {"bundles": [], "pages": [], "columns": [], "masks": []}
    for commands in (["the command"], []):
        given = {**found, "commands": commands}
        tpu_compilation.write_report(RunFolder(tmp_path), {}, given)
        report = json.loads((tmp_path / "report.json").read_text())
        assert report == {**found, "command": "".join(commands)}
        text = (tmp_path / "report.md").read_text()
        assert f"- command: `{''.join(commands)}`" in text


def test_without_libtpu_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "libtpu", None)
    config = settings.load("configs/studies/kernels.py")
    assert config.stage == "tpu_compilation"
    with pytest.raises(ConfigError, match=r"decodax\[tpu\]"):
        run.run(config, str(tmp_path))


@pytest.mark.tpu_aot
def test_one_configuration_through_the_command(tmp_path):
    pytest.importorskip("libtpu")
    overrides = ("chips=('v5e',)", "models=('8B',)", "sizes=(8192,)", "nodes=(1,)")
    overrides += ("batches=(1,)", "timed.size=512", "bundles.chips=('v5e',)")
    overrides += ("bundles.groups=(1,)", "bundles.nodes=(1,)", "pages.chips=('v5e',)")
    overrides += ("pages.nodes=(1,)", "pages.pages=(64,)", "columns.chips=('v5e',)")
    overrides += ("columns.groups=(8,)", "columns.queries=(32,)", "masks.nodes=(1,)")
    overrides += ("masks.vocabularies=((2048,40),)",)
    fields = [f"--config.{o}" for o in overrides]
    arguments = [
        "--config=configs/studies/kernels.py",
        f"--workdir={tmp_path}",
        *fields,
    ]
    assert run.main(arguments) == 0
    text = (tmp_path / "report.md").read_text()
    assert "| v5e | 8B | 8192 | 1 | 1 |" in text and "1 configurations" in text
    assert "| v5e | 1 | 1 | 1 heads × 1024 slots | 512 |" in text
    assert "| v5e | 1 | 64 | 512 |" in text
    assert "| v5e | 8 | 32 | given | 8 heads × 1024 slots | 2,048 | – |" in text
    assert "| v5e | 2,048 |" in text
