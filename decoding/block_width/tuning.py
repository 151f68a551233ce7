"""Measure what a round costs by block width, once for each method and machine.

The times are those of the compiled loop that decodes: forced to every width, without a
draft, and with the shortest draft. They are kept beside the compiled programs, in
`rounds/` of the cache folder (`models.compile_cache`), so that the next process does
not measure again. Within a process a call begins with the acceptance that the one
before has seen.
"""

import hashlib
import json
import time
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from decoding import base, compose
from decoding.block_width import controller
from decoding.block_width.costs import Costs, corrected
from decoding.loops import decode, engines
from models import compile_cache, storage

REPEATS = 5  # in turns; the least counts, since other work only adds time
LEAST, ROUNDS = 0.03, 32  # seconds and rounds of one measurement, at least and at most
IGNORED = 0.1  # a shorter draft that saves less than this share saves nothing
PROMPT = 32  # tokens of the prompts, drawn at random
TIMED = 0.02  # seconds of a call that corrects the times, at least

_MEASURED: dict[tuple, Costs] = {}
_CORRECTED: dict[tuple, Costs] = {}  # by the calls since
_LEARNED: dict[tuple, controller.Learned] = {}


def costs_of(
    engine: engines.Engine,
    params: base.Params,
    parts: compose.Composition,
    batch: int,
    size: int,
    again: bool = False,
) -> Costs | None:
    """Return the milliseconds of a round by width, measured or from an earlier run.

    None: the composition's width is not "auto", and nothing is measured.

    Args:
        engine: of the composition.
        params: all params, by name.
        parts: the composition.
        batch: rows.
        size: `T`, the token buffer's size.
        again: measure even if the times are known.
    """
    if not parts.program.width.measured:
        return None
    key = (parts.key, batch, size)
    if not again and key in _MEASURED:
        return _CORRECTED.get(key, _MEASURED[key])
    file = _file(parts, batch, size)
    times = None if again else _read(file)
    if times is None:
        times = measure(engine, params, parts, batch, size)
        _write(file, times)
    found = Costs(
        np.float32(times["plain"]),
        np.asarray(times["block"], np.float32),
        np.float32(times["level"]),
    )
    _MEASURED[key] = found
    _CORRECTED.pop(key, None)
    return found


class Times(NamedTuple):
    """Milliseconds of a round."""

    widths: tuple[int, ...]
    plain: float  # without a draft
    block: tuple[float, ...]  # with a whole draft, by width
    level: float  # of one level of the draft

    def __str__(self) -> str:
        blocks = ", ".join(f"{w}: {t:.2f}" for w, t in zip(self.widths, self.block))
        return (
            f"ms a round: {self.plain:.2f} without a draft; with one, by nodes: "
            f"{blocks}; a level of the draft: {self.level:.2f}"
        )


def times(parts: compose.Composition, costs: Costs) -> Times:
    """Name the measured costs of a composition by its widths."""
    block = tuple(np.asarray(costs.block).tolist())
    widths = parts.program.widths
    return Times(widths, float(costs.plain), block, float(costs.level))


def begun(
    parts: compose.Composition,
    state: decode.DecodeState,
    costs: Costs | None,
) -> decode.DecodeState:
    """Give a started state the costs of its rounds, and what the last call learned.

    None leaves it as it is.
    """
    if costs is None:
        return state
    known = _LEARNED.get(_key(parts, state))
    informed = controller.informed(state.width, costs, parts.program.widths, known)
    return replace(state, width=informed)


def ended(
    parts: compose.Composition, state: decode.DecodeState, seconds: float = 0.0
) -> None:
    """Keep what a finished call has learned, for the next one of this process.

    `seconds` are those of its rounds; 0: they were not timed.
    """
    if not parts.program.width.measured or jax.process_count() > 1:
        return
    key, found = _key(parts, state), controller.learned(state.width)
    first = key not in _LEARNED  # a program's first run takes longer than it will again
    _LEARNED[key] = found
    if first or seconds < TIMED or key not in _MEASURED:
        return
    if found.spent.sum() > 0:
        believed = _CORRECTED.get(key, _MEASURED[key])
        numbers = (found.spent, 1e3 * seconds)
        _CORRECTED[key] = corrected(believed, _MEASURED[key], *numbers)


def run(
    engine: engines.Engine,
    params: base.Params,
    parts: compose.Composition,
    state: decode.DecodeState,
) -> decode.DecodeState:
    """Run all rounds of a call that has `begun`, and keep what it has learned."""
    compiled, begun = engine.compile_seconds, time.perf_counter()
    state = jax.block_until_ready(engine.advance(params, state))
    seconds = time.perf_counter() - begun - (engine.compile_seconds - compiled)
    ended(parts, state, seconds)
    return state


def _key(parts: compose.Composition, state: decode.DecodeState) -> tuple:
    return parts.key, *state.tokens.shape


def measure(
    engine: engines.Engine,
    params: base.Params,
    parts: compose.Composition,
    batch: int,
    size: int,
) -> dict[str, Any]:
    """Measure milliseconds: `plain`, `block` by width, and `level` of the draft."""
    program = parts.program
    rng = np.random.default_rng(0)
    length = max(1, min(PROMPT, size // 4))
    prompts = rng.integers(0, program.vocab, (batch, length)).tolist()
    keys = engines.request_keys(0, batch, 1)
    limits = [size] * batch
    state = engine.start(params, parts, prompts, limits, keys, size, whole=True)
    depth, last = program.drafter.depth, len(program.widths) - 1
    settings = [(i, depth) for i in range(last + 1)]
    if depth > 1:
        settings.append((0, 1))
    if program.drafter.pauses:
        settings.append((0, 0))
    rounds, least = dict.fromkeys(settings, 1), dict.fromkeys(settings, np.inf)
    call = np.inf  # seconds of a call that runs no round
    for repeat in range(REPEATS + 1):
        spent, state = timed(engine, params, state, 0, batch)
        call = min(call, spent if repeat else np.inf)
        for setting in settings:
            state = forced(state, setting)
            spent, state = timed(engine, params, state, rounds[setting], batch)
            if repeat:
                each = (spent - call) / rounds[setting]
                least[setting] = min(least[setting], max(each, 1e-6))
            else:
                enough = int(np.ceil(LEAST / spent))
                rounds[setting] = min(max(enough, 4), ROUNDS)
    whole = [1e3 * least[i, depth] for i in range(last + 1)]
    level = 0.0
    if depth > 1:
        spared = whole[0] - 1e3 * least[0, 1]
        level = spared / (depth - 1) if spared > IGNORED * whole[0] else 0.0
    plain = 1e3 * least[(0, 0)] if program.drafter.pauses else whole[0]
    plain = min(plain, whole[0])  # a round with a draft does all of one without
    whole = np.maximum.accumulate(whole).tolist()
    widths = list(program.widths)
    return {"widths": widths, "plain": plain, "block": whole, "level": level}


def timed(
    engine: engines.Engine, params: base.Params, state: Any, rounds: int, batch: int
) -> tuple[float, Any]:
    """Run rounds of `batch` rows; return their seconds and the new state.

    All processes take the time of process 0: they must run the same rounds and blocks.
    """
    begun = time.perf_counter()
    # More free rows than there are: rows that have ended cost the same.
    state = jax.block_until_ready(engine.advance(params, state, rounds, batch + 1))
    spent = time.perf_counter() - begun
    if jax.process_count() > 1:
        from jax.experimental import multihost_utils

        spent = float(multihost_utils.broadcast_one_to_all(np.float32(spent)))
    return spent, state


def forced(state: decode.DecodeState, setting: tuple[int, int]) -> Any:
    """Force the rounds of a state to a width's index and a depth; (0, 0): a pause."""
    plan = replace(state.width.shared, forced=jnp.asarray(setting, jnp.int32))
    return replace(state, width=base.State(state.width.row, plan))


def _file(parts: compose.Composition, batch: int, size: int) -> storage.Path | None:
    """Name the file of the times; None where the cache is off."""
    folder = compile_cache.folder()
    if folder is None or jax.process_count() > 1:
        return None
    model, drafts, streams, *rest = parts.key
    named = lambda part: repr(getattr(part, "config", part))
    program, device = parts.program, jax.devices()[0]
    identity = [
        repr(model.config),
        repr(model.plan),
        [named(draft) for draft in drafts],
        [(name, [named(part) for part in identity]) for name, *identity in streams],
        repr(rest),
        # A method that was changed since: what it needs measured may differ.
        [program.widths, program.drafter.depth, program.drafter.pauses],
        batch,
        size,
        device.platform,
        device.device_kind,
        jax.__version__,
    ]
    text = json.dumps(identity)
    if " at 0x" in text:  # a part that was built by hand has no lasting name
        return None
    name = hashlib.sha256(text.encode()).hexdigest()[:24]
    return folder / "rounds" / f"{name}.json"


def _read(file: storage.Path | None) -> dict[str, Any] | None:
    if file is None or not file.exists():
        return None
    try:
        return json.loads(file.read_text())
    except ValueError:  # written by a process that was stopped
        return None


def _write(file: storage.Path | None, times: dict[str, Any]) -> None:
    if file is None:
        return
    try:
        storage.write(file, json.dumps(times))
    except OSError:
        pass  # `compile_cache.enable` has warned that the folder cannot be written
