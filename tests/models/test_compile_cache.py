"""models/compile_cache.py: programs outlive their process, apart by machine."""

import json
import os
import subprocess
import sys
import types

import pytest

from models import compile_cache

SCRIPT = """
import json, sys
import jax, jax.numpy as jnp
from models import compile_cache
events = []
jax.monitoring.register_event_listener(lambda name, **_: events.append(name))
jnp.ones(3) + 1  # JAX has compiled before the cache is switched on
folder = compile_cache.enable()
jax.jit(lambda x: jnp.sin(x) @ x.T)(jnp.ones((5, 7))).block_until_ready()
seen = lambda word: sum(word in event for event in events)
print(json.dumps([str(folder), seen("cache_hits"), seen("cache_misses")]))
"""


def run(**variables: str) -> tuple[str, int, int]:
    """The folder in use, and the programs found and not found, in a new process."""
    dropped = ("JAX_COMPILATION_CACHE_DIR", "XDG_CACHE_HOME", compile_cache.VARIABLE)
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**kept, "JAX_PLATFORMS": "cpu", **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return tuple(json.loads(done.stdout.splitlines()[-1]))


def test_a_second_process_compiles_nothing(tmp_path):
    """In the user's cache directory; planted: another machine finds nothing."""
    first = run(XDG_CACHE_HOME=str(tmp_path))
    assert first[0].startswith(str(tmp_path / "decodax")) and first[1:] > (0, 0)
    folder, hits, misses = run(XDG_CACHE_HOME=str(tmp_path))
    assert folder == first[0] and hits > 0 and misses == 0
    (tmp_path / "decodax" / "other").mkdir()
    os.rename(folder, tmp_path / "decodax" / "other" / "machine")
    assert run(XDG_CACHE_HOME=str(tmp_path))[2] > 0


def test_it_is_moved_switched_off_and_left_alone(tmp_path):
    moved = run(**{compile_cache.VARIABLE: str(tmp_path / "moved")})
    assert moved[0] == str(tmp_path / "moved" / compile_cache.machine())
    assert run(**{compile_cache.VARIABLE: "off"}) == ("None", 0, 0)
    theirs = run(JAX_COMPILATION_CACHE_DIR=str(tmp_path / "theirs"))
    assert theirs[0] == str(tmp_path / "theirs")


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv(compile_cache.VARIABLE, str(tmp_path / "file"))
    bare = types.SimpleNamespace(jax_compilation_cache_dir=None)
    monkeypatch.setattr(compile_cache, "jax", types.SimpleNamespace(config=bare))
    assert compile_cache.enable() is None


@pytest.mark.parametrize("feature", ["jaxlib", "processor"])
def test_machines_differ(feature, monkeypatch):
    before = compile_cache.machine()
    if feature == "jaxlib":
        monkeypatch.setattr(compile_cache.metadata, "version", lambda name: "0.0")
    else:
        monkeypatch.setattr(compile_cache.platform, "machine", lambda: "other")
    assert compile_cache.machine() != before
