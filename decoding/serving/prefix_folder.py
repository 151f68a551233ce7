"""A folder of stored prefixes: their names, and what can be done without a model.

A name is `<hash chain of the tokens>-<next token, or any>-<signature>.safetensors`.
"""

import hashlib
import json
import os
import pathlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from decoding.serving import prefix_files, prefix_rows
from decoding.serving.cachegen import codec
from decoding.serving.prefix_rows import Misfit, Row
from models import storage
from models.errors import MethodError

ANY = "any"  # in a name: the row does not depend on the token after the prefix
LINK = 128  # tokens of a link of the hash chain


class Entry(NamedTuple):
    """One file of a store."""

    file: storage.Path
    tokens: int  # of the prefix; 0: unknown, the file is damaged
    bytes: int
    age: float  # seconds since it was last written or loaded
    level: str
    reason: str = ""  # what is wrong with it


class PrefixFolder:
    """The files of a store."""

    def __init__(self, folder: str | os.PathLike, link: int = LINK):
        """Open a folder whose names have a hash a `link` tokens.

        Raises:
            MethodError: a link of no token.
        """
        if link < 1:
            raise MethodError(f"link={link}: use at least 1 token")
        self.folder, self.link = storage.path(folder), link

    def name(self, row: Row) -> str:
        """Return the name of a row's file, without its suffix."""
        key = chain(row.tokens, self.link)[-1]
        return f"{key}-{_next(row.following)}-{_digest(row.signature)}"

    @property
    def is_kept_locally(self) -> bool:
        """Whether the files are on a disk."""
        return isinstance(self.folder, pathlib.Path)

    def candidates(self, tokens: Sequence[int]) -> Iterator[tuple[int, storage.Path]]:
        """Yield the files of prefixes of `tokens`, the longest first, with its end."""
        names: dict[str, list[storage.Path]] = {}
        for file in self._files():
            names.setdefault(file.name.partition("-")[0], []).append(file)
        keys = chain(tokens[: len(tokens) - 1], self.link)
        for i in range(len(keys) - 1, -1, -1):
            end = (i + 1) * self.link
            own = {ANY, _next(int(tokens[end]))}
            files = names.get(keys[i], [])
            # Those whose next token fits are read first: others are a reason at most.
            for file in sorted(
                files, key=lambda f: (f.name.split("-")[1] not in own, f.name)
            ):
                yield end, file

    def _files(self) -> list[storage.Path]:
        if not self.folder.exists():
            return []
        parts = [
            f for f in self.folder.iterdir() if f.name.endswith(prefix_files.SUFFIX)
        ]
        return sorted(f for f in parts if not f.name.startswith("."))

    def entries(self) -> list[Entry]:
        """List the entries, the last used first; files that cannot be read, too."""
        entries = [self._entry(file) for file in self._files()]
        return sorted(entries, key=lambda entry: entry.age)

    def _entry(self, file: storage.Path) -> Entry:
        size, age = storage.size(file), time.time() - _used(file)
        try:
            about = prefix_files.about(file)
            level = about.get("coded", {}).get("level", codec.RAW)
            return Entry(file, int(about["tokens"]), size, age, level)
        except (
            prefix_files.Damaged,
            OSError,
            KeyError,
            TypeError,
            ValueError,
        ) as reason:
            return Entry(file, 0, size, age, "", str(reason))

    def verify(self) -> list[Entry]:
        """Read every file whole, and return the entries with what is wrong with each.

        Files that killed writers left behind are among them.
        """
        entries = []
        for entry in self.entries():
            try:
                about, arrays = prefix_files.read(entry.file)
                row = prefix_rows.of_content(about, arrays)
                if entry.file.name != self.name(row) + prefix_files.SUFFIX:
                    raise Misfit("its name is that of another prefix")
            except (prefix_files.Damaged, Misfit, OSError) as reason:
                entry = entry._replace(reason=str(reason))
            except (KeyError, TypeError, ValueError, IndexError) as error:
                entry = entry._replace(reason=f"no entry ({error!r})")
            entries.append(entry)
        for file in self._torn():
            age, size = time.time() - _used(file), storage.size(file)
            entries.append(Entry(file, 0, size, age, "", "a writer did not finish it"))
        return entries

    def _torn(self) -> Sequence[storage.Path]:
        if not self.is_kept_locally or not self.folder.exists():
            return []
        return sorted(self.folder.glob(f".*{prefix_files.SUFFIX}.*.part"))

    def evict(
        self, most_bytes: int | None = None, most_seconds: float | None = None
    ) -> list[Entry]:
        """Remove entries that were not used for longest; return them.

        Args:
            most_bytes: of all files that stay; the newest are kept.
            most_seconds: since an entry was written or loaded. What killed writers left
                goes at that age, too.
        """
        gone, total = [], 0
        for entry in self.entries():
            total += entry.bytes
            too_old = most_seconds is not None and entry.age > most_seconds
            if too_old or (most_bytes is not None and total > most_bytes):
                total -= entry.bytes
                gone.append(entry)
        for entry in gone:
            entry.file.unlink(missing_ok=True)
        for file in self._torn() if most_seconds is not None else ():
            if time.time() - _used(file) > most_seconds:  # type: ignore[operator]
                file.unlink(missing_ok=True)
        return gone


def chain(tokens: Sequence[int], link: int) -> list[str]:
    """Return the hash of each prefix of whole links: of the one before and the link."""
    digest, keys = b"", []
    for end in range(link, len(tokens) + 1, link):
        part = np.asarray(tokens[end - link : end], "<i8").tobytes()
        digest = hashlib.blake2b(digest + part, digest_size=16).digest()
        keys.append(digest.hex())
    return keys


def _next(token: int) -> str:
    return ANY if token < 0 else f"{token}"


def _digest(signature: Mapping[str, Any]) -> str:
    text = json.dumps(signature, sort_keys=True).encode()
    return hashlib.blake2b(text, digest_size=8).hexdigest()


def _used(file: storage.Path) -> float:
    stat: Any = file.stat()
    return float(getattr(stat, "st_mtime", 0.0) or getattr(stat, "mtime", 0.0))
