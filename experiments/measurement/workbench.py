"""Time decoding: one method on a list of prompts, batch by batch."""

import copy
import gc
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np

from decoding import Method, base, compose
from decoding.block_width import tuning
from decoding.loops import engines, initial_state, state_sharding, stats
from decoding.serving import results
from models.errors import ConfigError
from models.synthetic import constant
from models.transformer import experts


class Model(NamedTuple):
    """A language model with the fields that `decoding` reads."""

    model: Any
    params: Any
    tokenizer: Any = None


@dataclass(frozen=True)
class Case:
    """A method at one temperature, for which a program is compiled."""

    method: Method
    temperature: float = 0.0
    constant: bool = False  # the target's call replaced by a constant
    width: str | int = "paper"  # of blocks, as in `decoding.generate`


@dataclass
class Run:
    """Counts and times of decoding all prompts once; times exclude compilation.

    Lists are by prompt, `batch_seconds` by batch. `accepted` and `offered` are
    int[depths], `ranked` int[ranks].
    """

    tokens: list[list[int]] = field(default_factory=list)
    origin: list[list[int]] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)  # target calls, per prompt
    accepted: list[np.ndarray] = field(default_factory=list)  # by depth
    offered: list[np.ndarray] = field(default_factory=list)
    ranked: list[np.ndarray] = field(default_factory=list)  # by sibling rank
    candidates: int = 0
    draft_calls: int = 0
    rounds: int = 0  # of the loop: the longest row's, summed over batches
    draft_rounds: int = 0  # the same for model calls of the drafter
    seconds: float = 0.0  # in the loop
    batch_seconds: list[float] = field(default_factory=list)  # the same, by batch
    prefill_seconds: float = 0.0
    compile_seconds: float = 0.0

    @property
    def new_tokens(self) -> int:
        return sum(map(len, self.tokens))

    @property
    def per_round(self) -> float:
        """Return seconds a round; of a constant target: the time outside its call."""
        return self.seconds / max(self.rounds, 1)


class Bench:
    """A target, its drafts, and the sizes that all programs share.

    Every text gets a buffer of the same size, so that one program serves all tasks.
    """

    def __init__(
        self,
        lm: Any,
        drafts: Mapping[str, Any],
        prompt_tokens: int,
        new_tokens: int,
        batch: int = 1,
    ):
        self.lm, self.drafts = lm, dict(drafts)
        self.new_tokens, self.batch = new_tokens, batch
        self.size = initial_state.bucket(prompt_tokens + new_tokens)
        model, params = constant.language_model(lm.model), constant.params(lm.model)
        self.stub = Model(model, params, lm.tokenizer)

    def beside(self, lm: Any, **drafts: Any) -> "Bench":
        """Make a bench of the same sizes for another target or other drafts."""
        bench = copy.copy(self)
        bench.lm, bench.drafts = lm, {**self.drafts, **drafts}
        return bench

    def compose(self, case: Case, lm: Any = None) -> compose.Composition:
        """Compose a case's method with `lm`, the target by default."""
        lm = (self.stub if case.constant else self.lm) if lm is None else lm
        return compose.compose(
            case.method, lm, case.temperature, self.drafts, width=case.width
        )

    def params(self, lm: Any) -> base.Params:
        """Collect the params of `lm` and the drafts, by role, on their devices."""
        return compose.params(lm, self.drafts)

    def batches(
        self, prompts: Sequence[list[int]], seed: int
    ) -> list[tuple[list[list[int]], jax.Array]]:
        """Cut prompts into batches, with request keys that no batch size changes."""
        if len(prompts) % self.batch:
            raise ConfigError(
                f"{len(prompts)} prompts do not fill batches of {self.batch}: choose "
                "prompts as a multiple of batch"
            )
        keys = engines.request_keys(seed, len(prompts), 1)
        spans = [slice(i, i + self.batch) for i in range(0, len(prompts), self.batch)]
        return [(list(prompts[s]), keys[s]) for s in spans]

    def decode(
        self,
        case: Case,
        prompts: Sequence[list[int]],
        keys: jax.Array,
        run: Run,
        memory: Any = None,
        lm: Any = None,
    ) -> Any:
        """Decode one batch and add it to `run`.

        Args:
            case: the method and temperature.
            prompts: token prompts of one batch.
            keys: request keys of the prompts.
            run: the counts and times to add to.
            memory: the drafter's shared state after earlier batches; None: empty.
            lm: the target; by default the bench's, or its stub for a constant case.

        Returns:
            The drafter's shared state, `memory` of the next batch.
        """
        lm = (self.stub if case.constant else self.lm) if lm is None else lm
        parts = self.compose(case, lm)
        engine, params = engines.engine(parts), self.params(lm)
        compiled = engine.compile_seconds
        costs = tuning.costs_of(engine, params, parts, len(prompts), self.size)
        run.compile_seconds += engine.compile_seconds - compiled
        compiled = engine.compile_seconds
        limits = [len(p) + self.new_tokens for p in prompts]
        begun = time.perf_counter()
        state = engine.start(params, parts, prompts, limits, keys, self.size, memory)
        state = jax.block_until_ready(tuning.begun(parts, state, costs))
        filled, filling = time.perf_counter(), engine.compile_seconds - compiled
        state = jax.block_until_ready(engine.advance(params, state))
        ended = time.perf_counter()
        looping = engine.compile_seconds - compiled - filling
        run.prefill_seconds += filled - begun - filling
        run.batch_seconds.append(ended - filled - looping)
        run.seconds += run.batch_seconds[-1]
        run.compile_seconds += filling + looping
        tuning.ended(parts, state, run.batch_seconds[-1])
        record(run, prompts, state)
        return state.drafter.shared

    def once(
        self, case: Case, prompts: Sequence[list[int]], seed: int, lm: Any = None
    ) -> Run:
        """Decode all prompts in order; each batch starts with the last one's memory."""
        run, memory = Run(), None
        for part, keys in self.batches(prompts, seed):
            memory = self.decode(case, part, keys, run, memory, lm)
        return run

    def interleaved(
        self, cases: Sequence[Case], prompts: Sequence[list[int]], seed: int
    ) -> list[Run]:
        """Decode all prompts by each case; cases take turns batch by batch.

        Every other batch takes them backwards: what runs first in a turn is slower.
        No garbage is collected meanwhile: that made single times 10 to 30 % longer.
        """
        runs, memories = [Run() for _ in cases], [None for _ in cases]
        order = list(enumerate(cases))
        gc.collect()
        gc.disable()
        try:
            for part, keys in self.batches(prompts, seed):
                for i, case in order:
                    memories[i] = self.decode(case, part, keys, runs[i], memories[i])
                order.reverse()
        finally:
            gc.enable()
        return runs


def record(run: Run, prompts: Sequence[list[int]], state: Any) -> None:
    """Add the texts and counters of a finished batch, of any loop, to `run`."""
    rows = results.Rows(**state_sharding.results(state))
    ends, counters = np.asarray(rows.length), rows.counters
    tokens, origin = np.asarray(rows.tokens), np.asarray(rows.origin)
    for i, prompt in enumerate(prompts):
        span = slice(len(prompt), int(ends[i]))
        run.tokens.append(tokens[i, span].tolist())
        run.origin.append(origin[i, span].tolist())
    calls, drafts = np.asarray(counters.target_calls), np.asarray(counters.draft_calls)
    run.calls += calls.tolist()
    run.accepted += list(np.asarray(counters.accepted))
    run.offered += list(np.asarray(counters.offered))
    run.ranked += list(np.asarray(counters.ranked))
    run.candidates += int(np.asarray(counters.candidates).sum())
    run.draft_calls += int(drafts.sum())
    run.rounds += int(calls.max())
    run.draft_rounds += int(drafts.max())


def weight_bytes(lm: Any, tokens: float = 1) -> int:
    """Count the bytes of weights that a call of `tokens` tokens reads."""
    return experts.read_bytes(lm.model.config, lm.params, tokens, lambda x: x.nbytes)


def cache_bytes(lm: Any) -> int:
    """Count the bytes of keys and values per token of context."""
    dtype = jax.tree.leaves(lm.params)[0].dtype
    cache = jax.eval_shape(lambda: lm.model.init_cache(1, 1, dtype))
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(cache.layers))


def bytes_read(bench: Bench, case: Case, run: Run, prompts: Sequence[list[int]]) -> int:
    """Count the bytes that all rounds of `run` must read: weights and live keys.

    Weights are read once a call. A drafter's model calls count too: they read the
    weights of the draft model, of the heads, or of the target.
    """
    lm = bench.lm
    # Rows that have ended verify nothing.
    tokens = (sum(run.calls) + run.candidates) / max(run.rounds, 1)
    total = run.rounds * weight_bytes(lm, tokens)
    for prompt, text, calls in zip(prompts, run.tokens, run.calls, strict=True):
        total += int(calls * (len(prompt) + len(text) / 2) * cache_bytes(lm))
    if run.draft_rounds:
        needs = case.method.needs
        if "heads" in needs:
            draft_bytes = sum(x.nbytes for x in jax.tree.leaves(bench.drafts["heads"]))
        else:
            draft_bytes = weight_bytes(
                bench.drafts["draft"] if "draft" in needs else lm
            )
        total += run.draft_rounds * draft_bytes
    return total


def repeated(tokens: list[int], n: int = 4) -> float:
    """Compute the share of a text's n-grams that occurred before in it."""
    grams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def by_depth(run: Run) -> tuple[list[float], list[float]]:
    """Compute P(depth committed | offered), and P(depth committed) per round."""
    accepted, offered = np.sum(run.accepted, 0), np.sum(run.offered, 0)
    is_offered = offered > 0
    conditional = (accepted[is_offered] / offered[is_offered]).tolist()
    return conditional, (accepted / max(sum(run.calls), 1)).tolist()


def by_rank(run: Run) -> list[float]:
    """Compute the share of the committed drafts by rank among their siblings."""
    ranked = np.sum(run.ranked, 0)
    return (ranked / max(ranked.sum(), 1)).tolist()


def wasted(run: Run) -> float:
    """Compute the share of the verified drafts that were not committed."""
    return 1 - np.sum(run.accepted) / run.candidates if run.candidates else 0.0


def loops(run: Run) -> list[float]:
    """Compute each text's share inside one exact repetition."""
    return [float(stats.loop_share(text)) for text in run.tokens]


def guarantee(bench: Bench, case: Case) -> str:
    """Return the guarantee of a case's composition; LOSSY if it is not a known one."""
    name = bench.compose(case).guarantee
    return name if name in base.GUARANTEES else base.LOSSY
