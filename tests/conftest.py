"""Compiled programs are kept between runs; `long` tests are opted into."""

import os
import pathlib

import jax
import pytest

_DEFAULT = pathlib.Path(__file__).parent.parent / ".jax_cache"
jax.config.update(
    "jax_compilation_cache_dir",
    os.environ.get("JAX_COMPILATION_CACHE_DIR", str(_DEFAULT)),
)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def pytest_collection_modifyitems(config, items):
    """Skip `long` tests unless `-m` names them."""
    if "long" in config.option.markexpr:
        return
    skip = pytest.mark.skip(reason="minutes of sampling: run with `pytest -m long`")
    for item in items:
        if "long" in item.keywords:
            item.add_marker(skip)
