"""The loop's carry on a mesh: rows over the batch's axes, caches by their layout.

`State.shared` (tables, matrices, draft vocabularies) outlives a request and is
replicated on every device, because every row reads and writes it.
"""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import jax

from decoding import base
from models.cache_layouts.kv_cache import by_rows
from models.distributed import sharding


def rows(tree: Any) -> Any:
    """Return the axes of leaves with a leading batch, including those of caches."""
    return by_rows(lambda cache: cache.axes(), lambda x: "batch", tree)


def component(state: base.State) -> base.State:
    """Return the axes of a component's state; `shared` leaves have none."""
    return base.State(rows(state.row), jax.tree.map(lambda x: "", state.shared))


COMPONENTS = (
    *("drafter", "verifier", "transform", "exit", "width", "stop"),
    "schedule",  # of canvases
)


def parts(state: Any) -> dict[str, Any]:
    """Return the fields of a loop's state that hold arrays, by name."""
    own = [f.name for f in fields(state) if f.metadata.get("pytree_node", True)]
    return {name: getattr(state, name) for name in own}


def axes(state: Any) -> Any:
    """Return the axes of every leaf of a loop's state."""
    every = parts(state).items()
    return replace(
        state, **{n: component(x) if n in COMPONENTS else rows(x) for n, x in every}
    )


def shardings(plan: sharding.Plan | None, state: Any) -> Any:
    """Return the shardings of a state or of its shapes; None without a plan."""
    return None if plan is None else plan.tree(state, axes(state))


def pinned(state: Any) -> Any:
    """Constrain a state to the shardings of the plan in use, as the loops' carries."""
    if sharding.active() is None:
        return state
    return jax.tree.map(sharding.constrain, state, axes(state))


def made(plan: sharding.Plan | None, make: Callable[[], Any]) -> Any:
    """Make a cache directly in its sharding: whole, it may not fit one device."""
    if plan is None:
        return make()
    with sharding.use(plan):  # a layout may divide its arrays by the mesh
        like = jax.eval_shape(make)
        return jax.jit(make, out_shardings=plan.tree(like, like.axes()))()


RESULTS = ("tokens", "origin", "logprobs", "length", "counters", "order")


def results(state: Any) -> dict[str, Any]:
    """Fetch the `RESULTS` fields, the sources of an output, to every process's host."""
    return {name: sharding.fetch(getattr(state, name)) for name in RESULTS}
