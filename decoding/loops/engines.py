"""Compiled programs over requests: `start`, `advance`, `admit`, `step`."""

import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from decoding import base, compose, noise, state_sharding
from decoding.loops import decode, initial_state, prefill
from models.distributed import sharding
from models.errors import PromptError

Loop = Callable[[Callable, decode.DecodeState], decode.DecodeState]

MAPS = pathlib.Path("/proc/self/maps")
MOST = 50_000  # memory mappings; past the 65,530 that Linux grants, XLA crashes

_ENGINES: dict[tuple, "Engine"] = {}  # the latest asked for last


class Engine:
    """One composition and its compiled functions, by the shapes of their arguments."""

    def __init__(self, program: decode.Program):
        self.program = program
        self.compile_seconds = 0.0
        self._compiled: dict[Any, Callable] = {}

    def start(
        self,
        params: base.Params,
        parts: compose.Composition,
        prompts: Sequence[Sequence[int]],
        limits: Sequence[int],
        keys: Array,
        size: int,
        memory: Any = None,
        share: bool = False,
    ) -> decode.DecodeState:
        """A state for `prompts`, caches filled; `size` is the token buffer's `T`.

        `limits` are the lengths (prompt included) at which rows end. `parts` may hold
        other numbers (temperature, ...) than the composition that was compiled. With
        `share` a long common beginning is kept once; no request can be admitted then.
        """
        given = (params, parts, prompts, limits, keys, size, memory, share)
        state, own = initial_state.initial_state(
            self.program, *given, self.program.model.plan
        )
        return self._call("prefill", prefill.prefill, (1,), params, state, own)

    def advance(
        self,
        params: base.Params,
        state: decode.DecodeState,
        rounds: int | None = None,
        free: int | None = None,
    ) -> decode.DecodeState:
        """Decode until `free` rows are done (default: all) or `rounds` have passed."""
        rounds = np.iinfo(np.int32).max if rounds is None else rounds
        free = state.done.shape[0] if free is None else free
        bounds = (np.int32(rounds), np.int32(free))
        return self._call("advance", decode.advance, (1,), params, state, *bounds)

    def step(
        self, params: base.Params, state: decode.DecodeState
    ) -> tuple[decode.DecodeState, base.Outcome]:
        """One round, with its outcome, for host loops that show or record it."""
        return self._call("step", decode.round_, (1,), params, state)

    def admit(
        self,
        state: decode.DecodeState,
        row: int,
        fresh: decode.DecodeState,
        source: int = 0,
    ) -> decode.DecodeState:
        """Put request `source` of `fresh` (a `start` of the same `size`) in `row`."""

        def put(program, state, row, fresh, source):
            return decode.admit(state, row, fresh, source)

        at = jnp.int32(row), jnp.int32(source)
        return self._call("admit", put, (0,), state, at[0], fresh, at[1])

    def _call(self, name: str, function: Callable, donate: tuple, *arguments: Any):
        leaves, structure = jax.tree.flatten(arguments)
        shapes = tuple((x.shape, x.dtype, getattr(x, "sharding", None)) for x in leaves)
        key = (name, structure, shapes)
        if key not in self._compiled:
            begun = time.perf_counter()
            self._compiled[key] = self.lower(name, function, donate, *arguments)
            self.compile_seconds += time.perf_counter() - begun
        return self._compiled[key](*arguments)

    def lower(self, name: str, function: Callable, donate: tuple, *arguments: Any):
        """The compiled `function(program, *arguments)`; shapes will do for arrays."""
        plan = self.program.model.plan

        def call(*arguments):
            return function(self.program, *arguments)

        state = arguments[donate[0]]
        places: dict[str, Any] = {}
        if plan is not None:
            out = state_sharding.shardings(plan, state)
            places["out_shardings"] = (out, None) if name == "step" else out
        jitted = jax.jit(call, donate_argnums=donate, **places)
        with sharding.use(plan):
            return jitted.lower(*arguments).compile()


def engine(parts: compose.Composition) -> Engine:
    """Return the engine of a composition; those that differ in numbers share it.

    Where compiled programs hold more than `MOST` memory mappings (some thousand each on
    CPU), the least recently used half of the engines is dropped.
    """
    found = _ENGINES.pop(parts.key, None)
    if found is None:
        if mappings() > MOST:
            for key in list(_ENGINES)[: (len(_ENGINES) + 1) // 2]:
                del _ENGINES[key]
        found = Engine(parts.program)
    _ENGINES[parts.key] = found
    return found


def mappings() -> int:
    """How many memory mappings the process holds; 0 where the system does not say."""
    if not MAPS.exists():
        return 0
    with open(MAPS, "rb") as lines:
        return sum(1 for _ in lines)


def request_keys(seed: int | Sequence[int], prompts: int, n: int) -> Array:
    """Keys of `n` samples of every prompt, prompt by prompt."""
    requests = jnp.repeat(jnp.arange(prompts, dtype=jnp.int32), n)
    samples = jnp.tile(jnp.arange(n, dtype=jnp.int32), prompts)
    seeds = np.asarray(seed)
    if seeds.ndim:
        if seeds.shape != (prompts,):
            raise PromptError(
                f"seed has {seeds.shape[0]} entries for {prompts} prompts: give one "
                "seed, or one a prompt"
            )
        seeds = np.repeat(seeds, n)
    return noise.request_keys(seeds, requests, samples)
