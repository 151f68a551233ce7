"""Places stored prefixes in the rows of a call, before their prompts are read."""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
from absl import logging

from decoding import base, compose
from decoding.loops import decode, engines
from decoding.serving import prefix_rows
from decoding.serving.cachegen import codec
from decoding.serving.prefix_rows import Misfit
from decoding.serving.prefix_store import Found, PrefixStore


class Loaded(NamedTuple):
    """What a call loaded for one row: `out.prefixes`."""

    tokens: int  # of the prompt; the caches hold them
    level: str  # "raw", a level of `cachegen`, or "" for a miss
    reason: str  # why nothing, or nothing longer, was loaded
    seconds: float  # of reading, decoding and placing it


class Loading:
    """Loads prefixes into a state before its prompts are read.

    `loaded` has one entry a row afterwards.
    """

    def __init__(
        self,
        store: PrefixStore,
        lm: Any,
        parts: compose.Composition,
        params: base.Params,
        rows: Sequence[Sequence[int]],
        engine: engines.Engine,
    ):
        self.store, self.lm, self.parts, self.params = store, lm, parts, params
        self.rows, self.engine = rows, engine
        self.loaded: list[Loaded] = []

    def __call__(self, state: decode.DecodeState, chunk: int) -> decode.DecodeState:
        """Place the longest stored prefix of every row."""
        program, reason = self.engine.program, ""
        if self.parts.program.prefill is not None:
            reason = "the search changes the prompt's cache while it is read"
        if program.model.plan is not None:
            reason = "rows on a mesh are not loaded"
        try:
            signature = self.store.signature(self.lm, self.parts, self.params)
        except Misfit as unnamed:
            reason = str(unnamed)
        if reason:
            self._miss(reason)
            return state
        signature["chunk"] = chunk
        for i, tokens in enumerate(self.rows):
            began = time.perf_counter()
            found = self.store.find(tokens, signature)
            if found.row is not None:
                try:
                    one = prefix_rows.placeable(program, state, i, found.row)
                    state = self.engine.place(prefix_rows.place, state, one, i)
                except Misfit as misfit:
                    reasons = [found.reason] * bool(found.reason)
                    why = "; ".join([*reasons, f"{found.tokens} tokens: {misfit}"])
                    found = Found(None, why)
            if found.reason:
                logging.warning("prefix of prompt row %d: %s", i, found.reason)
            missing = "no stored prefix" * (not found.tokens and not found.reason)
            seconds = time.perf_counter() - began
            about = found.tokens, found.level, found.reason or missing, seconds
            self.loaded.append(Loaded(*about))
        return jax.block_until_ready(state)

    def _miss(self, reason: str) -> None:
        logging.warning("prefixes are not loaded: %s", reason)
        self.loaded = [Loaded(0, "", reason, 0.0) for _ in self.rows]

    @property
    def tokens(self) -> int:
        return sum(one.tokens for one in self.loaded)

    def guarantee(self, guarantee: str) -> str:
        """Return a method's guarantee, given what was loaded."""
        coded = any(one.level not in ("", codec.RAW) for one in self.loaded)
        return base.LOSSY if coded else guarantee
