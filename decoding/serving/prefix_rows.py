"""Rows of a decode state after a prefix of their prompt, to store and to place again.

What prefill changes in a row is stored: the caches of the target and of streams, the
policy's state, the drafter's and the exit's. All else is made anew from the prompt.

A part's state may begin from the whole prompt, which a prefix does not know. So a leaf
that prefill left alone is taken from the new row, and one that it changed may be
placed only where both rows began from the same value.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np

from decoding import base, compose
from decoding.loops import decode, streams
from models.cache_layouts import stored
from models.cache_layouts.kv_cache import KVCache, by_rows
from models.cache_layouts.stored import Arrays, Misfit

FORMAT = 1
BESIDE = ("policy", "drafter", "exit")  # parts of a state that prefill may change


class Row(NamedTuple):
    """A row after a prefix, and what it depends on."""

    tokens: tuple[int, ...]  # of the prefix, which the caches hold
    following: int  # the prompt's next token; -1: nothing in the row depends on it
    signature: dict[str, Any]
    arrays: Arrays
    begun: dict[str, str]  # digest of each leaf of `BESIDE` before the prefix
    evicted: bool  # the policy has given up slots


class Digests:
    """Digests of weights, computed once for the arrays that this object has met."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...], tuple[list, str]] = {}

    def of(self, tree: Any) -> str:
        """Return the digest of all names, shapes and bytes of a tree of arrays."""
        named, _ = jax.tree_util.tree_flatten_with_path(tree)
        leaves = [leaf for _, leaf in named]
        key = tuple(map(id, leaves))  # the leaves are held, so ids stay theirs
        if key not in self._known:
            digest = hashlib.blake2b(digest_size=16)
            for path, leaf in named:
                digest.update(jax.tree_util.keystr(path).encode())
                digest.update(digest_of(leaf).encode())
            self._known[key] = leaves, digest.hexdigest()
        return self._known[key][1]


def digest_of(array: Any) -> str:
    """Return the digest of an array's dtype, shape and bytes."""
    array = np.ascontiguousarray(array)
    head = f"{array.dtype.name}{array.shape}".encode()
    return hashlib.blake2b(head + array.tobytes(), digest_size=16).hexdigest()


def signature(
    lm: Any, parts: compose.Composition, params: base.Params, digests: Digests
) -> dict[str, Any]:
    """Return all but the tokens that a row after a prefix depends on, as JSON.

    Raises:
        Misfit: a part has no name that another process would know it by.
    """
    reads, model = repr(parts.prefills), parts.program.model
    if " at 0x" in reads:
        raise Misfit(f"a part that was built by hand has no lasting name: {reads}")
    tokenizer = getattr(lm, "tokenizer", None)
    alphabet = None
    if tokenizer is not None:
        known = getattr(tokenizer, "digest", None)
        alphabet = known or digest_of(
            np.frombuffer(b"\0".join(tokenizer.token_bytes()), np.uint8)
        )
    weights = dict(params)
    target = weights.pop("target")
    return {
        "format": FORMAT,
        "device": jax.default_backend(),  # others round otherwise
        "weights": digests.of(target),
        "other weights": {name: digests.of(x) for name, x in sorted(weights.items())},
        "tokenizer": alphabet,
        "config": hashlib.blake2b(repr(lm.model.config).encode()).hexdigest()[:32],
        "method": reads,
        "streams": sorted(streams.models(parts.program.streams)),
        "layout": stored.layout(jax.eval_shape(lambda: model.init_cache(1, 64))),
    }


def reads_following(state: decode.DecodeState, program: decode.Program) -> bool:
    """Return whether a row may depend on the token that follows what it holds."""
    rows = jax.tree.leaves((state.drafter.row, state.exit.row, state.policy))
    policy = program.policy
    return bool(rows) or policy.make is not None or policy.room is not None


def begun(state: decode.DecodeState, row: int) -> dict[str, str]:
    """Return the digests of the leaves of `BESIDE` before a prompt is read."""
    return {n: _digest_row(x, row) for n, x in _beside(state).items()}


def taken(
    program: decode.Program,
    state: decode.DecodeState,
    begun: Mapping[str, str],
    shared: Mapping[str, str],
    signature: dict[str, Any],
) -> Row:
    """Take row 0 of a state whose prompt was read, before the policy's `finish`.

    Args:
        program: the composition's.
        state: of one row, or of several.
        begun: `begun` of the row, before its prompt was read.
        shared: `shared_digests` then.
        signature: the composition's.

    Raises:
        Misfit: a layout that cannot be stored, or a part that learns from the prompt
            into a state that all rows share.
    """
    changed = [n for n, x in shared_digests(state).items() if x != shared[n]]
    if changed:
        raise Misfit(
            f"{', '.join(changed)} learns from prompts into a memory of all rows, "
            "which is not a row's"
        )
    arrays: Arrays = {}
    names = _own_caches(program, state)
    for name in names:
        named = stored.pack(state.caches[name], 0)
        arrays |= {f"caches.{name}.{n}": x for n, x in named.items()}
    for name, leaf in _beside(state).items():
        if isinstance(leaf, KVCache):
            named = stored.pack(leaf, 0)
            arrays |= {f"{name}.{n}": x for n, x in named.items()}
        elif _digest_row(leaf, 0) != begun[name]:
            arrays[name] = np.asarray(leaf[0])
    length = int(state.caches[decode.TARGET].length[0])
    tokens = np.asarray(state.tokens[0])
    following = int(tokens[length]) if reads_following(state, program) else -1
    return Row(
        tuple(tokens[:length].tolist()),
        following,
        signature,
        arrays,
        dict(begun),
        any(stored.evicted(state.caches[n], 0) for n in names),
    )


def shared_digests(state: decode.DecodeState) -> dict[str, str]:
    """Return the digest of what all rows share, by the part that it belongs to."""
    parts = {"the drafter": state.drafter.shared, "the exit": state.exit.shared}
    leaves = {name: jax.tree.leaves(tree) for name, tree in parts.items()}
    return {n: "".join(map(digest_of, x)) for n, x in leaves.items()}


def placeable(
    program: decode.Program, state: decode.DecodeState, row: int, entry: Row
) -> dict[str, Any]:
    """Return what `place` puts into row `row` of a state before its prompt is read.

    Raises:
        Misfit: the row does not fit this state.
    """
    caches = {}
    for name in _own_caches(program, state):
        start = f"caches.{name}."
        caches[name] = stored.unpack(state.caches[name], row, _below(entry, start))
    leaves: list[Any] = []
    for name, leaf in _beside(state).items():
        if isinstance(leaf, KVCache):
            leaves.append(stored.unpack(leaf, row, _below(entry, f"{name}.")))
            continue
        used = name in entry.arrays or (entry.evicted and name.startswith("policy"))
        if used and entry.begun.get(name) != _digest_row(leaf, row):
            raise Misfit(
                f"{name} began from another value: it depends on the whole prompt, or "
                "on the size of its buffer"
            )
        array = entry.arrays.get(name, np.asarray(leaf[row]))
        leaves.append(stored.fitted(array, leaf, name))
    structure = jax.tree.structure(_parts(state), is_leaf=_is_cache)
    return {"caches": caches, "parts": jax.tree.unflatten(structure, leaves)}


def place(
    program: decode.Program, state: decode.DecodeState, one: Any, row: Any
) -> decode.DecodeState:
    """Put what `placeable` returned into row `row` int32[] of a state."""

    def put(old: Any, new: Any) -> Any:
        admit = lambda old, new: old.admit(row, new, 0)
        return by_rows(admit, lambda old, new: old.at[row].set(new[0]), old, new)

    caches = {name: put(state.caches[name], new) for name, new in one["caches"].items()}
    policy, drafter, exits = put(_parts(state), one["parts"])
    return replace(
        state,
        caches={**state.caches, **caches},
        policy=policy,
        drafter=base.State(drafter, state.drafter.shared),
        exit=base.State(exits, state.exit.shared),
    )


def ends(program: decode.Program, state: decode.DecodeState, chunk: int) -> set[int]:
    """Return the tokens seen at which chunks of the prompt end, up to the row's.

    A chunk that the prompt's own end cut is left out: with a longer prompt it would
    have gone on.
    """
    cache = state.caches[decode.TARGET]
    last = int(cache.length[0])
    found, at = set(), 0
    tokens = np.asarray(state.tokens[:1])
    while at < last:
        step = chunk
        if program.policy.room is not None:
            coming: Any = np.take(
                tokens, np.arange(at + 1, at + 1 + chunk), 1, mode="clip"
            )
            here = replace(cache, length=np.full_like(cache.length, at))
            room = program.policy.room(state.policy, here, coming)
            step = min(step, int(room[0]))
        at += step
        if at <= last:
            found.add(at)
    return found


def content(row: Row) -> tuple[dict[str, Any], Arrays]:
    """Return a row's JSON, and its arrays with the tokens among them."""
    about = {
        "tokens": len(row.tokens),
        "signature": row.signature,
        "following": row.following,
        "begun": row.begun,
        "evicted": row.evicted,
    }
    return about, {**row.arrays, "tokens": np.asarray(row.tokens, np.int32)}


def of_content(about: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Row:
    """Return the row whose `content` this is."""
    rest = {name: x for name, x in arrays.items() if name != "tokens"}
    tokens = tuple(arrays["tokens"].tolist())
    head = tokens, about["following"], about["signature"]
    return Row(*head, rest, about["begun"], about["evicted"])


def differing(wanted: Mapping[str, Any], other: Mapping[str, Any]) -> Sequence[str]:
    """Name the parts of two signatures that differ."""
    names = [*wanted, *(name for name in other if name not in wanted)]
    return [name for name in names if wanted.get(name) != other.get(name)]


def _own_caches(program: decode.Program, state: decode.DecodeState) -> list[str]:
    """Name the caches of the prompt: all but those of streams' own prompts."""
    models = streams.models(program.streams)
    own = {name for name, stream in models.items() if stream.prompts is None}
    return [name for name in state.caches if name == decode.TARGET or name in own]


def _parts(state: decode.DecodeState) -> tuple[Any, Any, Any]:
    return state.policy, state.drafter.row, state.exit.row


def _beside(state: decode.DecodeState) -> dict[str, Any]:
    named = dict(zip(BESIDE, _parts(state)))
    leaves, _ = jax.tree_util.tree_flatten_with_path(named, is_leaf=_is_cache)
    order = {name: i for i, name in enumerate(BESIDE)}
    leaves.sort(key=lambda leaf: order[leaf[0][0].key])  # a dict sorts its keys
    return {"".join(_part(key) for key in path)[1:]: leaf for path, leaf in leaves}


def _part(key: Any) -> str:
    return f".{getattr(key, 'key', getattr(key, 'name', getattr(key, 'idx', key)))}"


def _is_cache(x: Any) -> bool:
    return isinstance(x, KVCache)


def _below(entry: Row, start: str) -> Arrays:
    cut = len(start)
    found = {n[cut:]: x for n, x in entry.arrays.items() if n.startswith(start)}
    if not found:
        raise Misfit(f"the stored row has no {start[:-1]}")
    return found


def _digest_row(leaf: Any, row: int) -> str:
    return "" if _is_cache(leaf) else digest_of(leaf[row])
