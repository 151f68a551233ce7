"""Compiled programs are kept between runs."""

import os
import pathlib

import jax

_DEFAULT = pathlib.Path(__file__).parent.parent / ".jax_cache"
jax.config.update(
    "jax_compilation_cache_dir",
    os.environ.get("JAX_COMPILATION_CACHE_DIR", str(_DEFAULT)),
)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
