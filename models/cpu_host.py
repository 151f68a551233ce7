"""Keep JAX from looking for a TPU on a machine that has none.

Where libtpu is installed (the extra `tpu`), JAX loads it in every process. On a machine
without a TPU that takes a second, and libtpu prints warnings about the TPU's type and
its workers before JAX falls back to the CPU. `settle` limits JAX to the CPU there.
Machines with a TPU, a GPU or another plugin of JAX are left as they are, and so is a
choice of the user's (`JAX_PLATFORMS`).
"""

import glob
import importlib.util
import os
import pathlib
from importlib import metadata
from typing import Any

import jax

TPUS = ("dev/accel*", "dev/vfio/[0-9]*")
GPUS = ("dev/nvidia[0-9]*", "dev/dxg", "dev/kfd")
GOOGLE = "0x1ae0"  # the vendor's number on the PCI bus
# Classes of its devices in any virtual machine of Google Cloud: storage, network.
ORDINARY = ("0x01", "0x02")
# With one of these the user means a TPU, whatever the machine looks like.
WISHES = ("JAX_FORCE_TPU_INIT", "JAX_BACKEND_TARGET")


def settle() -> bool:
    """Limit JAX to the CPU if there is nothing else; call it before any computation.

    Returns:
        Whether it did.
    """
    options: Any = jax.config
    if options.jax_platforms or importlib.util.find_spec("libtpu") is None:
        return False
    if any(name in os.environ for name in WISHES) or has_accelerator():
        return False
    if metadata.entry_points(group="jax_plugins"):
        return False
    jax.config.update("jax_platforms", "cpu")
    return True


def has_accelerator(root: str = "/") -> bool:
    """Test whether the machine seems to have a TPU or a GPU; `root` is for tests."""
    return _there(GPUS, root) or has_tpu(root)


def has_tpu(root: str = "/") -> bool:
    """Test whether the machine seems to have a TPU; `root` is for tests."""
    if _there(TPUS, root):
        return True
    for vendor in pathlib.Path(root).glob("sys/bus/pci/devices/*/vendor"):
        kind = vendor.with_name("class")
        if vendor.read_text().strip() == GOOGLE and kind.exists():
            if not kind.read_text().startswith(ORDINARY):
                return True
    return False


def _there(patterns: tuple[str, ...], root: str) -> bool:
    return any(glob.glob(os.path.join(root, pattern)) for pattern in patterns)
