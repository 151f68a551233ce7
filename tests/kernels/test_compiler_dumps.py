"""The process that compiles: its flags, and its folder."""

import subprocess

import pytest

from kernels import compiler_dumps

pytestmark = pytest.mark.kernels


def test_the_process_gets_the_callers_flags_and_its_own(monkeypatch):
    """Planted: with a cache of compiled programs there would be no dump."""
    ran = []
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--given=1")
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: ran.append((a, k)))
    with compiler_dumps.folder() as folder:
        compiler_dumps.compile_in(folder, "kernels.bundles", "a", "b", flags=("--x=2",))
        assert folder.is_dir()
    assert not folder.exists()
    (command,), options = ran[0]
    assert command[1:] == ["-m", "kernels.bundles", "a", "b"]
    flags = options["env"]["LIBTPU_INIT_ARGS"].split()
    assert flags[:2] == ["--given=1", f"--xla_jf_dump_to={folder}"]
    assert flags[2:] == [*compiler_dumps.FLAGS, "--x=2"]
    assert options["env"]["JAX_ENABLE_COMPILATION_CACHE"] == "false"
    assert (options["cwd"] / "kernels" / "bundles.py").is_file()
