"""Keep compiled programs between processes, in the user's cache directory.

XLA programs are cached in `$XDG_CACHE_HOME/decodax/<machine>` (by default
`~/.cache/decodax/<machine>`), least recently used first out at `MOST_BYTES`. Programs
hold machine code, so `<machine>` is a hash of the processor's features, the operating
system and the version of jaxlib; JAX adds the program, its flags and the devices.

`DECODAX_CACHE=folder` moves the cache, `DECODAX_CACHE=off` switches it off. One that
was set by JAX's own options (`JAX_COMPILATION_CACHE_DIR`) is left as it is.
"""

import functools
import hashlib
import os
import pathlib
import platform
from importlib import metadata
from typing import Any

import jax
from absl import logging
from jax.experimental.compilation_cache import compilation_cache

from models import storage

VARIABLE, OFF = "DECODAX_CACHE", ("off", "0", "none")
MOST_BYTES = 4 * 2**30
FEATURES = ("flags", "Features", "model name", "CPU part")  # lines of /proc/cpuinfo


def folder() -> storage.Path | None:
    """Return the folder that the environment names, or None if the cache is off."""
    chosen = os.environ.get(VARIABLE, "")
    if chosen.lower() in OFF:
        return None
    if chosen:
        return storage.path(chosen).expanduser() / machine()
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return pathlib.Path(home).expanduser() / "decodax" / machine()


def machine() -> str:
    """Hash everything that machine code depends on beside the program itself."""
    parts = [platform.system(), platform.machine(), platform.processor()]
    processor = pathlib.Path("/proc/cpuinfo")
    if processor.exists():
        text = processor.read_text(errors="replace")
        lines = {line for line in text.splitlines() if line.startswith(FEATURES)}
        parts += sorted(lines)
    parts.append(metadata.version("jaxlib"))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def enable() -> storage.Path | None:
    """Switch the cache on for this process, unless it is on or was switched off.

    Returns:
        The folder in use by JAX, or None.
    """
    options: Any = jax.config
    current = options.jax_compilation_cache_dir
    if current:
        return storage.path(current)
    chosen = folder()
    if chosen is None:
        return None
    if not _is_writable(chosen):
        return None
    jax.config.update("jax_compilation_cache_dir", str(chosen))
    # Of single operations there are hundreds, and each costs some ten milliseconds.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    jax.config.update("jax_compilation_cache_max_size", MOST_BYTES)
    # JAX decides at its first compilation whether there is a cache: let it look again.
    compilation_cache.reset_cache()
    return chosen


@functools.cache
def _is_writable(chosen: storage.Path) -> bool:
    """Make the folder and a file in it; warn once if that fails."""
    try:
        chosen.mkdir(parents=True, exist_ok=True)
        probe = chosen / f".probe-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        logging.warning(
            "compiled programs are not kept: %s (set %s to another folder, or to off)",
            error,
            VARIABLE,
        )
        return False
    return True
