"""The carry of the loop on a mesh: rows over the batch's axes, caches by their layout.

What outlives a request (`State.shared`: tables, matrices, draft vocabularies) lies
whole on every device, because every row reads and writes it.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax

from decoding import base
from models.cache_layouts.kv_cache import by_rows
from models.distributed import sharding


def rows(tree: Any) -> Any:
    """The axes of leaves with a leading batch, caches among them."""
    return by_rows(lambda cache: cache.axes(), lambda x: "batch", tree)


def component(state: base.State) -> base.State:
    return base.State(rows(state.row), jax.tree.map(lambda x: "", state.shared))


COMPONENTS = ("drafter", "verifier", "transform", "exit", "stop")


def axes(state: Any) -> Any:
    """The axes of every leaf of a `decode.DecodeState`."""
    fields = {name: getattr(state, name) for name in state.__dataclass_fields__}
    return replace(
        state,
        **{n: component(x) if n in COMPONENTS else rows(x) for n, x in fields.items()},
    )


def shardings(plan: sharding.Plan | None, state: Any) -> Any:
    """The shardings of a state or its shapes; None without a plan."""
    return None if plan is None else plan.tree(state, axes(state))


def pinned(state: Any) -> Any:
    """The state where the plan in use wants it: the carry of every loop ends so."""
    if sharding.active() is None:
        return state
    return jax.tree.map(sharding.constrain, state, axes(state))


def made(plan: sharding.Plan | None, make: Callable[[], Any]) -> Any:
    """A cache made where it belongs: whole it may not fit one device."""
    if plan is None:
        return make()
    like = jax.eval_shape(make)
    return jax.jit(make, out_shardings=plan.tree(like, like.axes()))()


RESULTS = ("tokens", "origin", "logprobs", "length", "counters")


def results(state: Any) -> dict[str, Any]:
    """What a request's output is made of, on the host of every process."""
    return {name: sharding.fetch(getattr(state, name)) for name in RESULTS}
