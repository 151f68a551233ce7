"""Rows that a batch takes in and gives up: a new request's, and those that lost."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
from jax import Array

from decoding import base
from decoding.hypotheses.rank import Rank
from decoding.loops import state_sharding
from models.cache_layouts.kv_cache import by_rows


def admit(state: Any, row: Array, fresh: Any, source: Array) -> Any:
    """Copy row `source` of `fresh` into `row` of `state`.

    `shared` leaves stay those of `state`, because they outlive a request.

    Args:
        state: the running rows.
        row: int32[], a finished row of `state`.
        fresh: a started state with buffers of the same sizes.
        source: int32[], the request's row in `fresh`.
    """

    def puts(old: Any, new: Any) -> Any:
        admit = lambda old, new: old.admit(row, new, source)
        return by_rows(admit, lambda old, new: old.at[row].set(new[source]), old, new)

    parts: dict[str, Any] = {}
    for name, old in state_sharding.parts(state).items():
        new = getattr(fresh, name)
        if name in state_sharding.COMPONENTS:
            parts[name] = base.State(puts(old.row, new.row), old.shared)
        else:
            parts[name] = puts(old, new)
    return state_sharding.pinned(replace(state, **parts))


def retired(rank: Rank, retire: Callable, state: Any) -> Any:
    """End the rows that cannot win any more, as the limit would."""
    group = lambda x: x.reshape(-1, rank.samples)
    length, done = group(state.length), group(state.done)
    lost = jax.vmap(retire)(length, done)
    return replace(state, done=state.done | lost.reshape(-1))
