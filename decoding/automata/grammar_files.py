"""Lifted grammars on disk: arrays in an `.npz` file, which checks itself by CRC."""

import io
import zipfile
from typing import Any

import jax
import numpy as np

from decoding.automata import arena, rests, token_trie
from decoding.automata.byte_machine import ByteMachine
from decoding.automata.lift import Lifted, Lists
from models import storage

_LISTS = Lists(0, 0)  # type: ignore[arg-type]
_MACHINE = ByteMachine(*range(len(ByteMachine._fields)))  # type: ignore[arg-type]
_FIELDS: dict[str, Any] = dict.fromkeys(Lifted._fields, 0)
_FIELDS |= {"machine": _MACHINE}
_FIELDS |= dict.fromkeys(("own", "returns", "pairs", "jumps"), _LISTS)
_FORM: Any = jax.tree.structure(Lifted(**_FIELDS))
_NAME = "leaf_{}".format


def _arrays(lifted: Lifted) -> dict[str, np.ndarray]:
    return {
        _NAME(i): np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(lifted))
    }


def _lifted(arrays: Any) -> Lifted:
    leaves = [arrays[_NAME(i)] for i in range(_FORM.num_leaves)]
    lifted = jax.tree.unflatten(_FORM, leaves)
    start = int(lifted.machine.start)
    return lifted._replace(machine=lifted.machine._replace(start=start))


def write(file: storage.Path | None, lifted: Lifted) -> None:
    """Keep a lifted grammar; nothing where the folder cannot be written."""
    _write(file, _arrays(lifted))


def read(file: storage.Path | None) -> Lifted | None:
    """Read a lifted grammar; None: there is none, or a damaged one."""
    arrays = _read(file)
    return None if arrays is None else _lifted(arrays)


def write_strings(
    file: storage.Path | None, strings: arena.Strings, endings: rests.Rests
) -> None:
    """Keep STRING over a vocabulary, and the rests of JSON."""
    arrays = _arrays(strings.lifted)
    arrays |= {
        "width": strings.width,
        "text": np.frombuffer(b"".join(endings.strings), np.uint8),
    }
    arrays["lengths"] = np.array([len(rest) for rest in endings.strings], np.int32)
    for name in ("places", "inner"):
        for leaf, values in getattr(endings, name)._asdict().items():
            arrays[f"{name}_{leaf}"] = values
    _write(file, arrays)


def read_strings(
    file: storage.Path | None,
) -> tuple[arena.Strings, rests.Rests] | None:
    """Read what `write_strings` wrote; None: there is nothing, or it is damaged."""
    arrays = _read(file)
    if arrays is None:
        return None
    text, ends = arrays["text"].tobytes(), np.cumsum(arrays["lengths"]).tolist()
    strings = [text[a:b] for a, b in zip([0, *ends], ends)]
    places = [
        rests.Places(*(arrays[f"{name}_{leaf}"] for leaf in rests.Places._fields))
        for name in ("places", "inner")
    ]
    trie = token_trie.trie(strings, has_empty=True)
    endings = rests.Rests(strings, trie, *places)
    return arena.Strings(_lifted(arrays), arrays["width"]), endings


def _write(file: storage.Path | None, arrays: dict[str, np.ndarray]) -> None:
    if file is None:
        return
    data = io.BytesIO()
    np.savez(data, **arrays)  # type: ignore[arg-type]
    try:
        with storage.new_file(file) as place:
            place.write_bytes(data.getvalue())
    except OSError:
        pass  # `compile_cache.enable` has warned that the folder cannot be written


def _read(file: storage.Path | None) -> dict[str, np.ndarray] | None:
    if file is None or not file.exists():
        return None
    try:
        with np.load(io.BytesIO(file.read_bytes()), allow_pickle=False) as arrays:
            return dict(arrays)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile):
        return None
