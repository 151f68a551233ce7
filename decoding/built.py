"""Parts of a method that were built by hand, and functions that become transforms."""

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from flax import struct
from jax import Array

from decoding import base, catalogue
from decoding.catalogue import Built, Card, Part, PerPrompt, Spec
from decoding.denoising import canvas_policy, schedule
from decoding.hypotheses import drafts, nodes, prefill, rank, reward
from models.errors import MethodError

# Folder -> the interface of the components that its factories build.
INTERFACES = {
    "drafters": base.Drafter,
    "verifiers": base.Verifier,
    "topologies": base.Topology,
    "transforms": base.LogitsTransform,
    "caches": base.CachePolicy,
    "exits": base.ExitPolicy,
    "search": nodes.Select,
    "rewards": reward.Reward,
    "diffusion": schedule.Scheduler,
}
KINDS = {
    rank.Rank: "rank",
    prefill.Prefill: "prefill",
    drafts.Lanes: "lanes",
    canvas_policy.CanvasPolicy: "canvas_policy",
}  # a folder's other interfaces -> `Card.kind`


def part(value: Any, folder: str) -> Part:
    """Return `value` as a part of a method.

    Args:
        value: a `Spec`, a component of the folder's interface, or, for "transforms", a
            function (see `function_transform`) or a list of specs, one a prompt, or,
            for "rewards", a function (see `rewards/python`).
        folder: the role's folder of decoding/.

    Raises:
        MethodError: the value is none of these.
    """
    if type(value) in (Spec, Built, PerPrompt):
        return value
    if folder == "rewards" and callable(value) and type(value) is not type:
        return Spec("rewards/python", function=value)
    if folder == "transforms" and type(value) in (list, tuple):
        return PerPrompt(tuple(value))
    interface = INTERFACES[folder]
    kind = KINDS.get(type(value), "")
    if type(value) is interface or catalogue.KINDS.get(kind) == folder:
        # An exit may change the law, and no card says that it does not.
        guarantee = getattr(value, "guarantee", base.LAW)
        if folder == "exits":
            guarantee = base.LOSSY
        # A built topology has its draw; its card offers no other.
        topology: Any = value
        draws = (topology.draw,) if folder == "topologies" else base.DRAWS
        card = Card("built", guarantee, draws=draws, kind=kind)
        return Built(f"a built {type(value).__name__}", folder, value, card)
    if folder == "transforms" and callable(value) and type(value) is not type:
        name = getattr(value, "__name__", repr(value))
        card = Card(f"the function {name}", base.LAW)
        return Built(name, folder, function_transform(value), card)
    function = ", a function" if folder in ("transforms", "rewards") else ""
    raise MethodError(
        f"{value!r} is no part of {folder}: give a Spec, a base.{interface.__name__}"
        f"{function} or, in a config, a name"
    )


@struct.dataclass
class Text:
    tokens: Array  # int32[T]; what lies past `length` is undefined
    length: Array  # int32[]


@functools.lru_cache(64)  # the same function is the same part of a program
def function_transform(
    function: Callable[[Array, Array, Array], Array],
) -> base.LogitsTransform:
    """Wrap `function(logits, tokens, length) -> logits` as a transform.

    ★ The function is written for one row: logits float32[V], tokens int32[T] of the
    prompt and the text so far, length int32[] of them. It must be traceable and return
    float32[V]; -inf forbids a token. It runs before the temperature.

    Every node of a tree has a copy of the T tokens: a transform with a state of its own
    (CONTRIBUTING.md) costs less.
    """

    def init(tokens: Array, length: Array) -> base.State:
        return base.State(Text(tokens, jnp.int32(length)))

    def apply(state: base.State, logits: Array, aux: dict[str, Array]) -> Array:
        return function(logits, state.row.tokens, state.row.length)

    def advance(
        state: base.State, token: Array, logits: Array, aux: dict[str, Array]
    ) -> base.State:
        text = state.row
        tokens = text.tokens.at[text.length].set(token, mode="drop")
        return base.State(Text(tokens, text.length + 1), state.shared)

    return base.LogitsTransform(init, apply, advance)
