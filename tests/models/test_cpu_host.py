"""Where there is no TPU, libtpu is not started and prints nothing."""

import os
import pathlib
import subprocess
import sys

import pytest

from models import cpu_host

ROOT = pathlib.Path(__file__).parents[2]


def device(root: pathlib.Path, vendor: str, kind: str) -> None:
    folder = root / "sys" / "bus" / "pci" / "devices" / f"{vendor}-{kind}"
    folder.mkdir(parents=True)
    (folder / "vendor").write_text(f"{vendor}\n")
    (folder / "class").write_text(f"{kind}\n")


def test_machines_are_recognised(tmp_path):
    """Google's network cards are no TPU; planted: its accelerators are."""
    device(tmp_path, cpu_host.GOOGLE, "0x020000")
    device(tmp_path, "0x8086", "0x120000")
    assert not cpu_host.has_accelerator(str(tmp_path))
    device(tmp_path, cpu_host.GOOGLE, "0x120000")
    assert cpu_host.has_accelerator(str(tmp_path))
    for name in ("accel0", "vfio/0", "nvidia0"):
        root = tmp_path / name
        (root / "dev" / name).mkdir(parents=True)
        assert cpu_host.has_accelerator(str(root))


def test_nothing_is_printed_on_a_machine_without_a_tpu():
    """In a process of its own; planted: the same without `settle`."""
    pytest.importorskip("libtpu", reason="the extra `tpu` is not installed")
    if cpu_host.has_accelerator():
        pytest.skip("this machine has an accelerator")

    def said(first: str) -> str:
        # Tests that compile for TPUs describe one, in variables of this process.
        set_here = lambda name: name == "JAX_PLATFORMS" or name.startswith("TPU_")
        others = {n: v for n, v in os.environ.items() if not set_here(n)}
        told = {"PYTHONPATH": str(ROOT), "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
        code = f"from models import cpu_host; import jax; {first}; jax.devices()"
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**others, **told},
            capture_output=True,
            text=True,
        )
        return done.stdout + done.stderr

    assert said("cpu_host.settle()") == ""
    assert "TPU" in said("pass")
