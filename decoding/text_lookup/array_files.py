"""Arrays of a datastore on disk: whole `.npy` files, mapped into memory."""

import pathlib
from typing import Any

import numpy as np

from models import storage
from models.errors import MethodError


def write(path: storage.Path, array: Any) -> None:
    """Write an array to a file; its folder is made."""
    with storage.new_file(path) as part, part.open("wb") as file:
        np.save(file, np.asarray(array), allow_pickle=False)


def read(path: storage.Path, command: str) -> np.ndarray:
    """Map an array's file into memory; one of a bucket is read.

    Args:
        path: the file.
        command: the one that builds the datastore, for errors.

    Raises:
        MethodError: the file is missing or is not an array's.
    """
    if not path.exists():
        raise MethodError(f"no datastore file {path}: build one with {command}")
    try:
        if isinstance(path, pathlib.Path):
            return np.load(path, mmap_mode="r", allow_pickle=False)
        with storage.local_copy(path) as copy:
            return np.load(copy, allow_pickle=False)
    except ValueError as error:
        raise MethodError(
            f"{path} is not an array file ({error}): build the datastore again"
        ) from error
