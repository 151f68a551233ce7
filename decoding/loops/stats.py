"""The loop's counters and figures computed from them; definitions: ARCHITECTURE.md."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array

SEARCHED = ("rounds", "nodes_run", "host_syncs", "most_slots", "levels")
RANKS = 8  # sibling ranks counted apart; the last one pools the higher ranks


@struct.dataclass
class Counters:
    """Counts per row, in the carry of the loop; `D` is the deepest draft."""

    target_calls: Array  # int32[B]: rounds, prefill not counted
    new_tokens: Array  # int32[B]
    accepted: Array  # int32[B, D]: rounds that committed a draft of depth d + 1
    offered: Array  # int32[B, D]: rounds whose tree had a candidate of depth d + 1
    draft_calls: Array  # int32[B]: model calls of the drafter, of a policy's lookahead
    candidates: Array  # int32[B]: draft nodes verified
    ranked: Array  # int32[B, RANKS]: committed drafts by rank among their siblings
    # float32[B]: slots of a layer that the rounds' nodes read; None: all tokens seen.
    keys_read: Array | None = None
    # float32[B, 2]: layers of the committed path's nodes, and layers that the row's
    # rounds ran; None: an exit does not choose them.
    layers: Array | None = None
    # Of canvases, int32[B]: positions that ran, and forwards of the widest program.
    nodes: Array | None = None
    wide: Array | None = None


def zeros(
    batch: int,
    depth: int,
    reads: bool = False,
    layers: bool = False,
    nodes: bool = False,
) -> Counters:
    """Make counters of `batch` rows for drafts of at most `depth`.

    Args:
        batch: B.
        depth: D.
        reads: whether to count the slots that a cache policy lets nodes read.
        layers: whether to count the layers that an exit chooses.
        nodes: whether to count the nodes that run, of canvases.
    """
    rows, deep = jnp.zeros((batch,), jnp.int32), jnp.zeros((batch, depth), jnp.int32)
    ranks = jnp.zeros((batch, RANKS), jnp.int32)
    keys = jnp.zeros((batch,), jnp.float32) if reads else None
    ran = jnp.zeros((batch, 2), jnp.float32) if layers else None
    own = (rows, rows) if nodes else (None, None)
    return Counters(rows, rows, deep, deep, rows, rows, ranks, keys, ran, *own)


class Memory(NamedTuple):
    """Bytes of a row's cache of the target: positions, scores and scales included."""

    prefill: float = 0.0
    decode: float = 0.0


NO_MEMORY = Memory()


class Stats(NamedTuple):
    """Figures of a run, as NumPy arrays and floats."""

    target_calls: np.ndarray  # int32[B]
    new_tokens: np.ndarray  # int32[B]
    tokens_per_call: float  # tau: new tokens / target calls; the root token counts
    accepted_by_depth: list[float]  # P(depth d committed | depth d offered)
    draft_calls: int
    candidates: int
    accepted_by_rank: list[float]  # share of the committed drafts with sibling rank r
    wasted: float  # share of the candidates that were not committed
    seconds: float
    compile_seconds: float
    row_draft_calls: np.ndarray  # int32[B]: `draft_calls`, row by row
    committed_by_depth: list[int]  # rounds that committed a draft of that depth
    rounds: int = 0  # of a search, as the next four: calls of the model
    nodes_run: np.ndarray | None = None  # int32[B]; of a canvas, too
    # Rounds that waited for a reward on the host, for slots, or for masks (of any
    # method: one for each constraint on the host); calls after the first.
    host_syncs: int = 0
    most_slots: np.ndarray | None = None  # int32[B]: scratch slots in use, at most
    levels: np.ndarray | None = None  # int32[B]: selections, several a call
    counters: Counters | None = None  # what the figures are computed from
    kv_bytes: float = 0.0  # of a row's cache of the target while decoding
    kv_bytes_prefill: float = 0.0  # while its prompt is read
    keys_read: float | None = None  # slots of a layer read for a new token; None: all
    loaded: int = 0  # tokens of prompts that a prefix store gave
    # Under an exit that chooses layers, for a new token: the layers that its node
    # needed, and those that ran for it, a round's layers shared by its tokens.
    layer_evals: float | None = None
    layers_run: float | None = None
    wide_calls: np.ndarray | None = None  # int32[B]: of a canvas: refreshes


def summarise(
    counters: Counters,
    seconds: float,
    compile_seconds: float,
    found: Any = None,
    memory: Memory = NO_MEMORY,
    loaded: int = 0,
) -> Stats:
    """Compute figures over all rows.

    Args:
        counters: the loop's counters.
        seconds: time of prefill and loop, without compilation.
        compile_seconds: time of compilation.
        found: a search's `Found`, or None.
        memory: of the cache.
        loaded: tokens of prompts that were loaded, not computed.
    """
    keys = counters.keys_read
    ran: dict[str, Any] = {}
    calls, new = np.asarray(counters.target_calls), np.asarray(counters.new_tokens)
    accepted = np.asarray(counters.accepted).sum(0)
    offered = np.asarray(counters.offered).sum(0)
    ranked = np.asarray(counters.ranked).sum(0)
    candidates = int(np.asarray(counters.candidates).sum())
    if counters.nodes is not None:
        ran |= {"nodes_run": np.asarray(counters.nodes)}
        ran |= {"wide_calls": np.asarray(counters.wide)}
    if counters.layers is not None:
        each = np.asarray(counters.layers).sum(0) / max(new.sum(), 1)
        ran |= {"layer_evals": float(each[0]), "layers_run": float(each[1])}
    return Stats(
        calls,
        new,
        float(new.sum() / max(calls.sum(), 1)),
        [float(a / o) for a, o in zip(accepted, offered) if o],
        int(np.asarray(counters.draft_calls).sum()),
        candidates,
        (ranked / max(ranked.sum(), 1)).tolist(),
        1 - float(accepted.sum()) / candidates if candidates else 0.0,
        seconds,
        compile_seconds,
        np.asarray(counters.draft_calls),
        accepted.tolist(),
        **({} if found is None else dict(zip(SEARCHED, found[1:]))),
        counters=jax.tree.map(np.asarray, counters),
        kv_bytes=memory.decode,
        kv_bytes_prefill=memory.prefill,
        keys_read=None
        if keys is None
        else float(np.asarray(keys).sum() / max(new.sum(), 1)),
        loaded=loaded,
        **ran,
    )


def with_masks(figures: Stats, masks: int) -> Stats:
    """Count the rounds that waited for `masks` constraints on the host.

    All rows begin together, so a call has as many rounds as its longest row.
    """
    rounds = figures.rounds or int(figures.target_calls.max(initial=0))
    return figures._replace(host_syncs=figures.host_syncs + masks * rounds)


def merged(every: Sequence[Stats]) -> Stats:
    """Sum the statistics of several calls of the same rows and depths.

    Between two calls the device waits for the host: `host_syncs` counts that, too.
    """
    counters = [stats.counters for stats in every]
    total = jax.tree.map(lambda *x: np.sum(x, 0), *counters)
    seconds = sum(stats.seconds for stats in every)
    compiled = sum(stats.compile_seconds for stats in every)
    syncs = sum(stats.host_syncs for stats in every) + len(every) - 1
    most = lambda name: max(getattr(stats, name) for stats in every)
    memory = Memory(most("kv_bytes_prefill"), most("kv_bytes"))
    loaded = sum(stats.loaded for stats in every)
    found = summarise(total, seconds, compiled, memory=memory, loaded=loaded)
    return found._replace(host_syncs=syncs)


def loop_share(tokens: list[int], least: float = 0.3) -> float:
    """Return the share of a text inside its longest exact repetition.

    A repetition is a run `x[i] == x[i - period]` for some period; its share includes
    the first period. A share below `least` is returned as 0.0.
    """
    x = np.asarray(tokens)
    best = 0
    for period in range(1, len(x) // 2 + 1):
        same = x[period:] == x[:-period]
        edges = np.flatnonzero(np.diff(np.concatenate([[0], same, [0]])))
        runs = edges[1::2] - edges[::2]
        if runs.size and runs.max() >= period:
            best = max(best, int(runs.max()) + period)
    share = best / max(len(x), 1)
    return share if share >= least else 0.0
