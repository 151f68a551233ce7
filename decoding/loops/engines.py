"""Compiled programs over requests: `start`, `advance`, `admit`, `step`."""

import functools
import pathlib
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from decoding import base, compose, noise, state_sharding, stats
from decoding.loops import decode
from models.cache_layouts.shared_prefix import must_be_dense, shared
from models.distributed import sharding
from models.errors import PromptError

Loop = Callable[[Callable, decode.DecodeState], decode.DecodeState]

SHARED = 2**14  # slots of a cache from which it pays not to hold them

MAPS = pathlib.Path("/proc/self/maps")
MOST = 50_000  # memory mappings; past the 65,530 that Linux grants, XLA crashes

_DECODERS: dict[tuple, "Decoder"] = {}  # the latest asked for last


def bucket(size: int) -> int:
    """The buffer that holds `size` tokens: few sizes, so that few programs compile."""
    step = 64
    while step * 8 < size:
        step *= 2
    return -(-size // step) * step


class Decoder:
    """One composition and its compiled functions, by the shapes of their arguments."""

    def __init__(self, program: decode.Program):
        self.program = program
        self.compile_seconds = 0.0
        self._compiled: dict[Any, Callable] = {}

    def start(
        self,
        params: dict,
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
        state, own = blank(self.program, *given, self.program.model.plan)
        return self._call("prefill", decode.prefill, (1,), params, state, own)

    def advance(
        self,
        params: dict,
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
        self, params: dict, state: decode.DecodeState
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


def blank(
    program: decode.Program,
    params: dict,
    parts: compose.Composition,
    prompts: Sequence[Sequence[int]],
    limits: Sequence[int],
    keys: Array,
    size: int,
    memory: Any,
    share: bool,
    plan: Any,
) -> tuple[decode.DecodeState, dict]:
    """The state before its prompts are read, and the prompts of the streams."""
    fresh = parts.program
    batch = len(prompts)
    tokens, length = _pad(prompts, size)
    dtype = _dtype(params[decode.TARGET])
    room = max(program.drafter.nodes, program.drafter.scratch)
    slots = -(-(size + room) // 16) * 16
    caches = {decode.TARGET: _cache(program, prompts, slots, dtype, share, plan)}
    own = {}
    for name, stream in program.streams.items():
        given = fresh.streams[name].prompts
        own[name] = (
            _pad(given, bucket(max(map(len, given))))
            if given
            else (jnp.array(tokens), jnp.array(length))
        )
        extra, kind = own[name][0].shape[1], _dtype(params[stream.params])
        make = functools.partial(stream.model.init_cache, batch, slots + extra, kind)
        caches[name] = state_sharding.made(plan, make)
    transform = jax.vmap(fresh.transform.init, out_axes=base.ROWS)(tokens, length)
    verifier = fresh.verifier.init(params)
    stop = base.State()
    if parts.stop is not None:
        stop = base.State(jnp.full((batch,), parts.stop.start), parts.stop)
    state = decode.DecodeState(
        tokens=tokens,
        origin=jnp.zeros((batch, size), jnp.int8),
        logprobs=jnp.zeros((batch, size), jnp.float32),
        length=length,
        limit=jnp.asarray(limits, jnp.int32),
        done=jnp.zeros((batch,), bool),
        key=keys,
        roots={name: jnp.zeros((batch,), jnp.int32) for name in program.streams},
        caches=caches,
        drafter=base.State(),
        verifier=base.State(_repeat(verifier.row, batch), verifier.shared),
        transform=transform,
        policy=program.policy.init(caches[decode.TARGET]),
        stop=stop,
        counters=stats.zeros(batch, program.drafter.depth),
    )
    drafter = fresh.drafter.init(decode.context(fresh, params, state))
    if memory is not None:
        drafter = _remember(drafter, memory)
    # Every buffer is donated, so none may stand in two places of the state.
    state = jax.tree.map(jnp.array, replace(state, drafter=drafter))
    if plan is not None:
        state = sharding.put(state, state_sharding.shardings(plan, state))
        own = sharding.put(own, plan.rows(own))
    return state, own


def decoder(parts: compose.Composition) -> Decoder:
    """The decoder of a composition; compositions that differ in numbers share it.

    Where compiled programs hold more than `MOST` memory mappings (some thousand each on
    CPU), the half of the decoders that was not asked for longest is let go.
    """
    found = _DECODERS.pop(parts.key, None)
    if found is None:
        if mappings() > MOST:
            for key in list(_DECODERS)[: (len(_DECODERS) + 1) // 2]:
                del _DECODERS[key]
        found = Decoder(parts.program)
    _DECODERS[parts.key] = found
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


def _pad(prompts: Sequence[Sequence[int]], size: int) -> tuple[Array, Array]:
    tokens = np.zeros((len(prompts), size), np.int32)
    for i, prompt in enumerate(prompts):
        tokens[i, : len(prompt)] = prompt
    length = np.array([len(p) for p in prompts], np.int32)
    return jnp.asarray(tokens), jnp.asarray(length)


def _dtype(params: Any) -> Any:
    return jax.tree.leaves(params)[0].dtype


def _cache(
    program: decode.Program,
    prompts: Sequence,
    slots: int,
    dtype: Any,
    share: bool,
    plan: Any,
) -> Any:
    """The target's cache; a long common beginning is kept once where rows `share`."""

    def make() -> Any:
        return program.model.init_cache(len(prompts), slots, dtype)

    like = jax.eval_shape(make)
    if share and like.shares and not must_be_dense(program.model.config):
        prefix = common_prefix(prompts, program.chunk)
        if prefix * (len(prompts) - 1) >= SHARED:
            return state_sharding.made(plan, lambda: shared(like, prefix))
    return state_sharding.made(plan, make)


def common_prefix(prompts: Sequence[Sequence[int]], chunk: int) -> int:
    """How many tokens all prompts begin with that a cache holds, whole chunks.

    Rounded down to few sizes, so that few programs compile.
    """
    first, last = min(map(list, prompts)), max(map(list, prompts))
    ends = min(map(len, prompts)) - 1  # of each prompt one token is not in the cache
    alike = next((i for i, (a, b) in enumerate(zip(first, last)) if a != b), ends)
    held, step = min(alike, ends), chunk
    while step * 16 < held:
        step *= 2
    return held // step * step


def _repeat(row: Any, batch: int) -> Any:
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (batch, *jnp.shape(x))), row)


def _remember(drafter: base.State, memory: Any) -> base.State:
    """The drafter's state with what an earlier call left in `out.memory`."""
    shapes = [jax.tree.map(jnp.shape, tree) for tree in (drafter.shared, memory)]
    if shapes[0] != shapes[1]:
        raise PromptError(
            "memory is not of this method and model: pass out.memory of an earlier "
            "generate with the same method, or None"
        )
    return base.State(drafter.row, memory)
