"""Dumps of the TPU compiler: it runs in a process of its own.

libtpu reads its flags only when it is loaded. Needs the extra `tpu`.
"""

import contextlib
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence

FLAGS = (
    "--xla_jf_dump_llo_text=true",
    "--xla_jf_dump_llo_pass_label_regex=final_bundles",
)


@contextlib.contextmanager
def folder() -> Iterator[pathlib.Path]:
    """Make a folder for dumps; it is removed behind the block."""
    with tempfile.TemporaryDirectory() as name:
        yield pathlib.Path(name)


def compile_in(
    place: pathlib.Path, module: str, *arguments: str, flags: Sequence[str] = ()
) -> subprocess.CompletedProcess:
    """Run a module that compiles; libtpu writes its final bundles.

    Args:
        place: the folder of the dumps.
        module: a module of this project; it compiles when it is run.
        arguments: of the command line.
        flags: further flags of libtpu.
    """
    given = os.environ.get("LIBTPU_INIT_ARGS", "")
    every = (f"--xla_jf_dump_to={place}", *FLAGS, *flags)
    environment = {
        **os.environ,
        "LIBTPU_INIT_ARGS": " ".join([given, *every]).strip(),
        "JAX_PLATFORMS": "cpu",
        "JAX_ENABLE_COMPILATION_CACHE": "false",  # a hit would write no dump
    }
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        cwd=pathlib.Path(__file__).parents[1],
    )
