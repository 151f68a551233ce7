"""Grammars and vocabularies on disk: arrays in `.npz` files, which check their CRC."""

import io
import zipfile
from typing import Any, TypeVar

import jax
import numpy as np

from decoding.automata import (
    arena,
    rests,
    string_insides,
    token_levels,
    token_trie,
)
from decoding.automata.byte_machine import ByteMachine
from decoding.automata.lift import Lifted, Lists
from models import storage

_LISTS = Lists(0, 0)  # type: ignore[arg-type]
_MACHINE = ByteMachine(*range(len(ByteMachine._fields)))  # type: ignore[arg-type]
_FIELDS: dict[str, Any] = dict.fromkeys(Lifted._fields, 0)
_FIELDS |= {"machine": _MACHINE}
_FIELDS |= dict.fromkeys(("own", "returns", "pairs", "jumps"), _LISTS)
# What is kept: tuples of arrays and ints, of which only the leaves are written.
LIFTED = Lifted(**_FIELDS)
TRIE = token_trie.Trie([], *range(6))  # type: ignore[arg-type]
_LEVELS = token_levels.Levels(*range(3))  # type: ignore[arg-type]
INSIDES = string_insides.Insides(0, 0, 0, _LEVELS, 0)  # type: ignore[arg-type]
_PLACES = rests.Places(*range(len(rests.Places._fields)))  # type: ignore[arg-type]
_RESTS = rests.Rests([], TRIE, _PLACES, _PLACES, _LEVELS)
_STRINGS: Any = (arena.Strings(LIFTED, 0), _RESTS, 0, 0)  # type: ignore[arg-type]
_NAME = "leaf_{}".format

Form = TypeVar("Form")


def _arrays(tree: Any) -> dict[str, np.ndarray]:
    return {_NAME(i): np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(tree))}


def _tree(arrays: Any, form: Form) -> Form:
    structure: Any = jax.tree.structure(form)
    leaves = [arrays[_NAME(i)] for i in range(structure.num_leaves)]
    return structure.unflatten([x if x.ndim else x.item() for x in leaves])


def write(file: storage.Path | None, tree: Any) -> None:
    """Keep a tree of arrays and ints; nothing where the folder cannot be written."""
    _write(file, _arrays(tree))


def read(file: storage.Path | None, form: Form) -> Form | None:
    """Read what `write` wrote, a tree of this form; None: nothing, or a damaged one."""
    arrays = _read(file)
    return None if arrays is None else _tree(arrays, form)


def write_strings(
    file: storage.Path | None, strings: arena.Strings, endings: rests.Rests
) -> None:
    """Keep STRING over a vocabulary, and the rests of JSON."""
    text = np.frombuffer(b"".join(endings.strings), np.uint8)
    lengths = np.array([len(rest) for rest in endings.strings], np.int32)
    bare = endings._replace(strings=[], trie=endings.trie._replace(strings=[]))
    write(file, (strings, bare, text, lengths))


def read_strings(
    file: storage.Path | None,
) -> tuple[arena.Strings, rests.Rests] | None:
    """Read what `write_strings` wrote; None: there is nothing, or it is damaged."""
    kept = read(file, _STRINGS)
    if kept is None:
        return None
    built, bare, text, lengths = kept
    data, ends = text.tobytes(), np.cumsum(lengths).tolist()
    strings = [data[a:b] for a, b in zip([0, *ends], ends)]
    trie = bare.trie._replace(strings=strings)
    return built, bare._replace(strings=strings, trie=trie)


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
