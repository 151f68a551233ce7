"""Files on a local disk or in a bucket: `gs://`, `s3://` and `az://`, by etils.epath.

A bucket has no rename, no append and no folders: an object appears whole, or not at
all. So a new file is written beside its place on a disk and renamed, and uploaded from
a temporary file to a bucket (`new_file`, `write`); a file that grows by lines is
appended to on a disk, and uploaded whole from time to time to a bucket (`Lines`).
"""

import atexit
import contextlib
import importlib.util
import os
import pathlib
import shutil
import tempfile
import time
from collections.abc import Iterator
from typing import IO, Any, TypeAlias, cast

from etils import epath

from models.errors import ConfigError

Path: TypeAlias = pathlib.Path | epath.Path

# Scheme -> the package that reads it.
SCHEMES = {"gs": "gcsfs", "s3": "s3fs", "az": "adlfs"}
UPLOAD_S = 30.0  # between two uploads of a file that grows
UPLOAD_SHARE = 0.1  # at most, of the time, goes to them


def path(name: str | os.PathLike) -> Path:
    """Return `name`, a local path or a URL of a bucket, as a path.

    Raises:
        ConfigError: a scheme that is not known, or whose package is not installed.
    """
    text = os.fspath(name)
    scheme, mark, _ = text.partition(":/")
    if not mark or "/" in scheme:
        return pathlib.Path(text)
    known = [f"{known}://" for known in SCHEMES]
    if scheme not in SCHEMES or not text.startswith(f"{scheme}://"):
        raise ConfigError(
            f"{text}: give a local path, or a URL that begins with one of {known}"
        )
    if importlib.util.find_spec(SCHEMES[scheme]) is None:
        raise ConfigError(
            f"{text} needs the package {SCHEMES[scheme]}: pip install {SCHEMES[scheme]}"
        )
    import fsspec  # which gcsfs and its like bring

    # Other processes write too: what is there is asked for each time.
    fsspec.config.conf.setdefault(scheme, {})["use_listings_cache"] = False
    return epath.Path(text)


def remote(file: str | os.PathLike) -> bool:
    """Return whether a path is in a bucket."""
    return "://" in os.fspath(file)


def absolute(file: Path) -> Path:
    """Return a path that does not depend on the working directory."""
    return file.absolute() if isinstance(file, pathlib.Path) else file


def size(file: Path) -> int:
    """Return a file's bytes."""
    return file.stat().st_size if isinstance(file, pathlib.Path) else file.stat().length


def files(folder: Path) -> list[Path]:
    """List the files under a folder, at any depth, sorted."""
    if isinstance(folder, pathlib.Path):
        return sorted(p for p in folder.rglob("*") if p.is_file())
    import fsspec  # `epath` lists one level, and `walk` without the scheme

    system, _, _ = fsspec.get_fs_token_paths(os.fspath(folder))
    scheme = os.fspath(folder).partition("://")[0]
    names = system.find(os.fspath(folder))
    return sorted(epath.Path(f"{scheme}://{name}") for name in names)


@contextlib.contextmanager
def new_file(file: Path) -> Iterator[pathlib.Path]:
    """Yield a local path to write, which becomes `file` at the end.

    A reader sees the old file or the new one. After an exception there is no new one.
    Folders are made. A process that is killed leaves a `leftover` on a disk. Others may
    read the file as they may any new one, whatever its writer allows: safetensors lets
    its owner alone.
    """
    if not isinstance(file, pathlib.Path):
        with tempfile.TemporaryDirectory() as folder:
            part = pathlib.Path(folder, file.name)
            yield part
            with _reported(file):
                upload(part, file)
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        part.touch()
        mode = part.stat().st_mode
        part.unlink()
        yield part
        part.chmod(mode)
        os.replace(part, file)
    finally:
        part.unlink(missing_ok=True)


def leftovers(file: Path) -> list[pathlib.Path]:
    """List what killed processes had begun to write in place of `file`."""
    if not isinstance(file, pathlib.Path):
        return []
    return list(file.parent.glob(f".{file.name}.*.part"))


@contextlib.contextmanager
def new_folder(folder: Path) -> Iterator[pathlib.Path]:
    """Yield a local folder to write; its files are copied to a bucket's `folder`."""
    if isinstance(folder, pathlib.Path):
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
        return
    with tempfile.TemporaryDirectory() as name:
        local = pathlib.Path(name)
        yield local
        for file in local.rglob("*"):
            if file.is_file():
                upload(file, folder / file.relative_to(local).as_posix())


def write(file: Path, data: str | bytes) -> None:
    """Write a whole file, by `new_file`."""
    with new_file(file) as part:
        part.write_bytes(data.encode() if isinstance(data, str) else data)


def upload(source: pathlib.Path, file: epath.Path) -> None:
    """Copy a local file to a bucket."""
    try:
        with source.open("rb") as there, file.open("wb") as here:
            shutil.copyfileobj(there, here, 1 << 24)
    except BaseException:
        with contextlib.suppress(Exception):  # closing has made an object of a part
            file.unlink()
        raise


@contextlib.contextmanager
def local_copy(file: Path) -> Iterator[pathlib.Path]:
    """Yield a local path with the contents of `file`: a copy if it is in a bucket."""
    if isinstance(file, pathlib.Path):
        yield file
        return
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder, file.name)
        download(file, copy)
        yield copy


def download(file: Path, to: pathlib.Path) -> None:
    """Copy a file to a local path."""
    with _reported(file), file.open("rb") as there, to.open("wb") as here:
        shutil.copyfileobj(there, here, 1 << 24)


def remove(folder: Path) -> None:
    """Remove a folder with all that is in it."""
    if isinstance(folder, pathlib.Path):
        shutil.rmtree(folder)
    else:
        folder.rmtree()


def move(folder: Path, to: Path) -> None:
    """Move a folder; one object after another in a bucket."""
    if isinstance(folder, pathlib.Path):
        to.parent.mkdir(parents=True, exist_ok=True)
        folder.rename(to)
        return
    for file in files(folder):
        within = os.fspath(file).removeprefix(os.fspath(folder)).lstrip("/")
        cast(epath.Path, file).copy(to / within, overwrite=True)
    folder.rmtree()


@contextlib.contextmanager
def _reported(file: Path) -> Iterator[None]:
    """Turn what a bucket's package raises into an OSError with the file's name."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise OSError(f"{file}: {type(error).__name__}: {error}") from error


class Lines:
    """A text file that grows by lines; use as a context manager.

    A torn last line, of a process that was killed, is cut. In a bucket, `flush` uploads
    only if the last upload is long enough ago (`UPLOAD_S`, `UPLOAD_SHARE`), and a kill
    loses the lines since; `sync` and the end upload in any case. All lines of a file in
    a bucket are held in memory.
    """

    def __init__(self, file: Path):
        self.file = file
        text = file.read_bytes() if file.exists() else b""
        whole = text[: text.rfind(b"\n") + 1]
        self._out: IO[Any] | None = None
        self._kept = bytearray()
        self._sent, self._due = len(whole), 0.0
        if not isinstance(file, pathlib.Path):
            self._kept += whole
            atexit.register(self.close)  # for those who let the program's end close it
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        if len(whole) < len(text):
            os.truncate(file, len(whole))
        self._out = open(file, "ab")

    def __enter__(self) -> "Lines":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, line: str) -> None:
        """Add a line, given without its end."""
        raw = line.encode() + b"\n"
        if self._out is None:
            self._kept += raw
        else:
            self._out.write(raw)

    def flush(self) -> None:
        """Show the lines to readers; in a bucket, from time to time."""
        if self._out is not None:
            self._out.flush()
        elif time.monotonic() >= self._due:
            self._upload()

    def sync(self) -> None:
        """Make sure that the lines outlive this process and its machine."""
        if self._out is None:
            self._upload()
        else:
            self._out.flush()
            os.fsync(self._out.fileno())

    def close(self) -> None:
        """Flush, and write no more."""
        if self._out is not None:
            self._out.close()
        else:
            self._upload()

    def _upload(self) -> None:
        if len(self._kept) == self._sent:
            return
        began = time.monotonic()
        with _reported(self.file):
            self.file.write_bytes(bytes(self._kept))
        self._sent, ended = len(self._kept), time.monotonic()
        self._due = ended + max(UPLOAD_S, (ended - began) / UPLOAD_SHARE)
