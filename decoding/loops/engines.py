"""Engines: the compiled functions of a composition, and the cache of engines."""

import contextlib
import dataclasses
import functools
import pathlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from decoding import base, compose, noise
from decoding.loops import (
    admission,
    canvas_state,
    decode,
    denoise,
    initial_state,
    prefill,
    search,
    search_state,
    state_sharding,
    stats,
    valuing,
)
from models.distributed import sharding
from models.errors import MethodError, PromptError

Loop = Callable[[Callable, decode.DecodeState], decode.DecodeState]

MAPS = pathlib.Path("/proc/self/maps")
MOST = 50_000  # memory mappings; past the 65,530 that Linux grants, XLA crashes

_ENGINES: dict[tuple, "Engine"] = {}  # the most recently used last


class Engine:
    """One composition and its compiled functions, keyed by their arguments' shapes."""

    def __init__(self, program: Any):
        self.program = program
        self.compile_seconds = 0.0
        self.prefill_bytes = 0  # of the target's cache, in the latest `start`
        self._compiled: dict[Any, Callable] = {}

    @property
    def is_canvas(self) -> bool:
        """Whether the program is of a diffusion model."""
        return self.program.is_canvas

    @property
    def loop(self) -> Any:
        """The module whose functions are compiled."""
        return denoise if self.is_canvas else decode

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
        requests: Sequence[int] | None = None,
        chunk: int = 0,
        scratch: int = 0,
        whole: bool = False,
        longest: tuple[int, int] | None = None,
        contexts: Sequence[int] | None = None,
        load: Callable[[decode.DecodeState, int], decode.DecodeState] | None = None,
        finish: bool = True,
        suffixes: Sequence[Sequence[int]] | None = None,
    ) -> Any:
        """Make a state for `prompts` and prefill its caches.

        Args:
            params: all params, by name.
            parts: a composition of the same program. Its numbers (temperature, ...) may
                differ from those of the composition that was compiled.
            prompts: token lists, one per row.
            limits: the lengths, prompt included, at which rows end.
            keys: key[B], the requests' keys.
            size: `T`, the token buffer's size.
            memory: `out.memory` of an earlier call, or None.
            share: store a long common beginning once. Such a state cannot admit
                requests.
            requests: each row's index in the settings of `parts`. None: the rows are
                in the order of the settings, as many for each.
            chunk: tokens of a row in a chunk of the prompt; 0: `prefill.chunk_size`.
            scratch: of a search: slots behind each prompt and text.
            whole: whether a search will run to its end, as `generate` does.
            longest: see `initial_state.initial_state`.
            contexts: how many of each row's first tokens the cache policy compresses,
                before the rest of the prompt is read; None: all.
            load: gets the state before its prompts are read and the tokens of a chunk;
                returns it with what is known of them already.
            finish: whether the policy goes on to decoding, see `prefill.finish`.
            suffixes: of a diffusion model: given text behind each canvas.

        Raises:
            MethodError: a search whose rounds another loop would run, or contexts
                without a policy that compresses them.
        """
        program = self.program
        if self.is_canvas:
            about = (params, parts, prompts, limits, keys, size, requests, longest)
            return self._canvas(params, canvas_state.started(program, *about, suffixes))
        if (program.select or program.rank) and not whole:
            raise MethodError(
                "a search runs whole, by decoding.generate: streams, prompt sets and "
                "loops of rounds take other methods"
            )
        numbers: Any = ()
        if program.prefill is not None:
            if chunk:
                raise MethodError(
                    f"prefill_chunk={chunk} beside a search that reads the prompt by "
                    f"windows of {program.prefill.window}: leave it out"
                )
            # The slots of one row alone are changed: no beginning is shared.
            chunk, share = program.prefill.window, False
            numbers = parts.program.prefill.numbers  # type: ignore[union-attr]
        if chunk:
            program = dataclasses.replace(program, chunk=chunk)
        arguments = (params, parts, prompts, limits, keys, size, memory, share)
        state, stream_prompts = initial_state.initial_state(
            program,
            *arguments,
            program.model.plan,
            requests,
            scratch,
            longest,
            contexts,
        )
        texts = [*prompts, *initial_state.own_prompts(parts)]
        tokens = prefill.chunk_size(program, state, max(map(len, texts)))
        if load is not None:
            if contexts is not None:
                raise MethodError(
                    "contexts= beside prefixes=: a stored prefix may reach behind the "
                    "context: leave one of them out"
                )
            state = load(state, tokens)
        fill = functools.partial(prefill.prefill, size=tokens)
        read = (f"prefill by {tokens}", fill, (1,), params)
        if contexts is not None:
            if program.policy.finish is None:
                raise MethodError(
                    "contexts= without a cache policy that compresses them: give one, "
                    "such as Method(policy=Spec('caches/snapkv')), or put the context "
                    "into the prompt"
                )
            # The cache lacks a prompt's last token: here, the first behind the context.
            length = state.length
            ends = jnp.minimum(jnp.asarray(contexts, jnp.int32) + 1, length)
            state = dataclasses.replace(state, length=ends)
            state = self._call(*read, state, stream_prompts, numbers)
            self.prefill_bytes = nbytes(state.caches[decode.TARGET])
            state = self._finished(params, state)
            state = dataclasses.replace(state, length=length)
            return self._call(*read, state, stream_prompts, numbers)
        state = self._call(*read, state, stream_prompts, numbers)
        self.prefill_bytes = nbytes(state.caches[decode.TARGET])
        if finish and program.policy.finish is not None:
            state = self._finished(params, state)
        return state

    def _canvas(
        self, params: base.Params, state: denoise.DenoiseState
    ) -> denoise.DenoiseState:
        if self.program.policy.prefills:
            state = self._call("read", canvas_state.read, (1,), params, state)
        self.prefill_bytes = nbytes(state.caches[decode.TARGET])
        return state

    def _finished(
        self, params: base.Params, state: decode.DecodeState
    ) -> decode.DecodeState:
        if self.program.policy.lookahead is not None:
            look = prefill.look_ahead
            state = self._call("lookahead", look, (1,), params, state)
        return self._call("finish", prefill.finish, (), state)

    def place(
        self, place: Callable, state: decode.DecodeState, one: Any, row: int
    ) -> decode.DecodeState:
        """Run `place(program, state, one, row)`; see `prefix_rows.place`."""
        return self._call("place", place, (0,), state, one, np.int32(row))

    def memory(self, state: decode.DecodeState) -> stats.Memory:
        """Return the bytes of a row's cache, of the state that `start` just made."""
        rows = state.length.shape[0]
        now = nbytes(state.caches[decode.TARGET])
        return stats.Memory(self.prefill_bytes / rows, now / rows)

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
        return self._call("advance", self.loop.advance, (1,), params, state, *bounds)

    def plant(
        self, own: tuple, rows: decode.DecodeState, new: int, size: int
    ) -> search_state.SearchState:
        """Begin a search behind the prompts of a started state.

        See `search_state.begin`.
        """

        def begin(program, own, rows):
            return search_state.begin(program, own, rows, new, size)

        return self._call(f"plant {new} {size}", begin, (1,), own, rows)

    def search(
        self, params: base.Params, state: search_state.SearchState, least: int
    ) -> search_state.SearchState:
        """Search until it is done or needs the host; see `search.advance`."""
        bound = np.int32(least)
        return self._call("search", search.advance, (1,), params, state, bound)

    def step(
        self, params: base.Params, state: decode.DecodeState
    ) -> tuple[decode.DecodeState, base.Outcome]:
        """Run one round and return its outcome too, for loops on the host."""
        return self._call("step", self.loop.round_, (1,), params, state)

    def admit(
        self,
        state: decode.DecodeState,
        row: int,
        fresh: decode.DecodeState,
        source: int = 0,
    ) -> decode.DecodeState:
        """Copy row `source` of `fresh` (a `start` of the same `size`) into `row`."""

        def put(program, state, row, fresh, source):
            return admission.admit(state, row, fresh, source)

        at = jnp.int32(row), jnp.int32(source)
        return self._call("admit", put, (0,), state, at[0], fresh, at[1])

    def value(
        self, lm: Any, params: base.Params, state: base.State, texts: tuple
    ) -> Array:
        """Value finished texts by the reward; see `valuing.of_rows`."""

        def of_rows(program, params, state, texts):
            return valuing.of_rows(program.reward, lm.model, params, state, texts)

        return self._call("value", of_rows, (), params, state, texts)

    def _call(self, name: str, function: Callable, donate: tuple, *arguments: Any):
        leaves, structure = jax.tree.flatten(arguments)
        ordered = sharding.ordered(self.program.model.plan)
        shapes = tuple(_demanded(x, ordered) for x in leaves)
        key = (name, structure, shapes)
        if key not in self._compiled:
            begun = time.perf_counter()
            self._make_room()
            self._compiled[key] = self.lower(name, function, donate, *arguments)
            self.compile_seconds += time.perf_counter() - begun
        return self._compiled[key](*arguments)

    def _make_room(self) -> None:
        """Let programs go if the process holds more than `MOST` memory mappings.

        A program on CPU holds some thousand. Of the other engines the half goes that
        was asked for longest ago; where there is none, the older half of the own
        functions.
        """
        if mappings() <= MOST:
            return
        others = [key for key, engine in _ENGINES.items() if engine is not self]
        for key in others[: (len(others) + 1) // 2]:
            del _ENGINES[key]
        if not others:
            for shapes in list(self._compiled)[: (len(self._compiled) + 1) // 2]:
                del self._compiled[shapes]

    def text(self, name: str) -> str:
        """Return the compiled function `name` that ran last, in XLA's notation."""
        found: list[Any] = [f for key, f in self._compiled.items() if key[0] == name]
        if not found:
            raise KeyError(f"{name!r} was not run")
        return found[-1].as_text()

    def lower(self, name: str, function: Callable, donate: tuple, *arguments: Any):
        """Compile `function(program, *arguments)`; arguments may be shapes.

        Args:
            name: the function's name; "step" returns an outcome beside the state.
            function: the function of the loop to compile.
            donate: index of the state among `arguments`, whose buffers are donated;
                empty: a function that returns no state.
            *arguments: arrays, or their shapes.
        """
        plan = self.program.model.plan

        def call(*arguments):
            return function(self.program, *arguments)

        places: dict[str, Any] = {}
        if plan is not None and donate:
            state = arguments[donate[0]]
            out = state_sharding.shardings(plan, state)
            places["out_shardings"] = (out, None) if name == "step" else out
        jitted = jax.jit(call, donate_argnums=donate, **places)
        with sharding.use(plan):
            return jitted.lower(*arguments).compile()


def nbytes(tree: Any) -> int:
    """Return the bytes of a tree's arrays."""
    return sum(x.nbytes for x in jax.tree.leaves(tree))


def _demanded(x: Any, ordered: bool) -> tuple:
    """Return what a program that was compiled for an argument demands of it.

    `ordered`: the order of its memory, too. Keys have none.
    """
    order = getattr(x, "format", None) if ordered else None
    return x.shape, x.dtype, getattr(x, "sharding", None), order


def engine(parts: compose.Composition) -> Engine:
    """Return the engine of a composition; those that differ in numbers share it."""
    entry = _ENGINES.pop(parts.key, None) or Engine(parts.program)
    _ENGINES[parts.key] = entry
    return entry


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """Use no engine of before, and leave none behind.

    For parts that are altered under an unchanged name, such as planted faults.
    """
    others = dict(_ENGINES)
    _ENGINES.clear()
    try:
        yield
    finally:
        _ENGINES.clear()
        _ENGINES.update(others)


def mappings() -> int:
    """Count the process's memory mappings; 0 where the system has no such file."""
    if not MAPS.exists():
        return 0
    with open(MAPS, "rb") as lines:
        return sum(1 for _ in lines)


def request_keys(seed: int | Sequence[int], prompts: int, n: int) -> Array:
    """Make keys [prompts * n] for `n` samples of every prompt, prompt by prompt.

    One seed gives each prompt the key of its index. Of one seed a prompt, each prompt
    has the key of a call of that prompt alone.

    Raises:
        PromptError: `seed` is a sequence of another length than the prompts.
    """
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
        requests = jnp.zeros_like(requests)  # as in a call of that prompt alone
    return noise.request_keys(seeds, requests, samples)
