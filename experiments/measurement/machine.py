"""The machine of a measurement: hardware, versions, read bandwidth."""

import importlib.metadata
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

PACKAGES = ("decodax", "jax", "jaxlib", "flax", "numpy", "tokenizers")


def hardware() -> dict[str, Any]:
    """Describe the processor, its memory, and the devices that jax lists."""
    device = jax.devices()[0]
    return {
        "platform": device.platform,
        "device": device.device_kind,
        "devices": jax.device_count(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory() / 2**30, 1),
        "last_level_cache_mib": round(last_level_cache() / 2**20, 1),
        "system": f"{platform.system()} {platform.machine()}",
    }


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that affect figures."""
    installed = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            installed[name] = "not installed"
    return installed


def commit() -> str:
    """Return the first letters of the sources' git commit; "" outside a checkout."""
    words = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def memory() -> int:
    """Return the machine's memory in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def last_level_cache() -> int:
    """Return the bytes of core 0's largest cache; 32 MiB where it is not listed."""
    sizes = [0]
    for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = file.read_text().strip()
        unit = {"K": 2**10, "M": 2**20, "G": 2**30}.get(text[-1:], 1)
        sizes.append(int(text.rstrip("KMG")) * unit)
    return max(sizes) or 32 * 2**20


def bandwidth(repeats: int = 5) -> dict[str, Any]:
    """Measure the read bandwidth in GB/s, on arrays of 8 times the last-level cache.

    Three readers, each by all threads: XLA's sum, XLA's matrix-vector product (the
    access pattern of a model call), and on CPU NumPy's `max`, one thread a core. The
    bandwidth is the best reader's median: a slow reader would flatter every MBU.
    """
    on_cpu = jax.default_backend() == "cpu"
    size = 8 * last_level_cache() if on_cpu else 2**31
    size = min(size, memory() // 8)
    rows = 8192
    columns = size // 4 // rows
    matrix, vector = jnp.ones((rows, columns)), jnp.ones((columns,))
    total, product = jax.jit(jnp.sum), jax.jit(jnp.dot)
    readers: dict[str, Callable[[], Any]] = {
        "sum": lambda: total(matrix).block_until_ready(),
        "matrix_vector": lambda: product(matrix, vector).block_until_ready(),
    }
    pool = ThreadPoolExecutor(len(os.sched_getaffinity(0)))
    if on_cpu:
        parts = np.array_split(np.asarray(matrix), pool._max_workers)
        readers["numpy_max"] = lambda: list(pool.map(np.max, parts))
    rates = {}
    for name, read in readers.items():
        read()
        seconds = []
        for _ in range(repeats):
            begun = time.perf_counter()
            read()
            seconds.append(time.perf_counter() - begun)
        rates[name] = round(4 * rows * columns / statistics.median(seconds) / 1e9, 3)
    pool.shutdown()
    return {
        "gb_s": max(rates.values()),
        "readers": rates,
        "bytes": 4 * rows * columns,
    }
