"""The contract of policies that keep all slots and read few, on the peaked transformer.

Both forms of selection are checked: by every node, and one list for `EVERY` tokens.
"""

import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from decoding import base
from decoding.catalogue import Spec
from decoding.conformance import kept_caches, kit, peaked
from decoding.conformance.require import require
from models.cache_layouts.sparse import SparseLayer

EVERY = 8  # tokens that a list serves
NEAR = 1e-4  # of sums in float32 over a prompt's tokens


def check(spec: Spec) -> None:
    """Check a policy that reads few slots against every contract here.

    Raises:
        AssertionError: it breaks a property; the message names it.
    """
    plain, drafted = kept_caches.runs(spec)
    fewer_slots_are_read(spec, plain)
    kept_caches.chunks_leave_one_text(spec, plain)
    kept_caches.rows_are_apart(spec, plain)
    kept_caches.a_large_budget_is_dense(spec)
    for form in forms(spec):
        plain, drafted = kept_caches.runs(form)
        kept_caches.drafts_keep_the_text(form, drafted, plain)
        rejected_drafts_leave_no_trace(form, drafted, plain)


def forms(spec: Spec) -> list[Spec]:
    """Return the policy with lists of `EVERY` tokens, and without if it has others."""
    part = kit.spec(spec.name, **spec.arguments)
    least = inspect.signature(part.factory).parameters["refresh"].default
    every = (1, EVERY) if least == 1 else (EVERY,)
    return [Spec(spec.name, **{**part.arguments, "refresh": n}) for n in every]


def reads_few(spec: Spec) -> bool:
    """Return whether a policy's layers keep all slots and read few."""
    policy = spec.build(peaked.parts())
    if policy.make is None:
        return False
    sizes = base.Sizes(1, 64, 8, 8, 4, jnp.float32)
    make = lambda: policy.make(peaked.functions(), sizes, jnp.full((1,), 8, jnp.int32))
    return any(isinstance(x, SparseLayer) for x in jax.eval_shape(make).layers)


def fewer_slots_are_read(spec: Spec, run: kit.Run) -> None:
    """Require that every slot stays, and that a node reads fewer on average."""
    state = run.advance(kept_caches.start(run))
    for layer in state.caches["target"].layers:
        lost = int(np.asarray(getattr(layer, "shift", 0)).max())
        require(lost == 0, spec, f"{lost} tokens have no slot")
    read = np.asarray(state.counters.keys_read) / np.asarray(state.counters.new_tokens)
    held = len(peaked.PROMPTS[-1]) + peaked.NEW / 2
    told = f"{read[-1]:.1f} slots a token are read of {held:.0f} on average"
    require(read[-1] < 0.9 * held, spec, told)


def rejected_drafts_leave_no_trace(
    spec: Spec, drafted: kit.Run, plain: kit.Run
) -> None:
    """Require the same lists and statistics after drafts as without."""
    if not drafted.parts.program.policy.path_pure:
        return
    caches = []
    for run in (drafted, plain):
        state = run.advance(kept_caches.start(run))
        caches.append(state.caches["target"])
    lengths = [np.asarray(cache.length).tolist() for cache in caches]
    require(lengths[0] == lengths[1], spec, f"tokens seen {lengths}")
    for i, pair in enumerate(zip(*(cache.layers for cache in caches))):
        for name, one, other in zip(_names(pair[0]), *map(_committed, pair, caches)):
            same = np.allclose(one, other, rtol=NEAR, atol=NEAR)
            require(same, spec, f"drafts leave a trace in {name} of layer {i}")


def _names(layer: SparseLayer) -> list[str]:
    return [*layer.extra, *layer.notes]


def _committed(layer: SparseLayer, cache: Any) -> list[np.ndarray]:
    """Return what a layer holds of rows and of committed slots."""
    extra = {name: np.asarray(x, np.float64) for name, x in layer.extra.items()}
    if "index" in extra:  # entries that are not chosen mean nothing
        order = np.arange(extra["index"].shape[-1])
        chosen = order < np.asarray(layer.extra["chosen"])[..., None]
        extra["index"] = np.sort(np.where(chosen, extra["index"], -1), -1)
    slots = np.arange(layer.capacity) < np.asarray(cache.length)[:, None]
    notes = []
    for x in layer.notes.values():
        held = slots.reshape(slots.shape[0], 1, -1, *(1,) * (x.ndim - 3))
        notes.append(np.where(held, np.asarray(x, np.float64), 0))
    return [*extra.values(), *notes]
