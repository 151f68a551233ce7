"""Count the experts that the calls of a decoding meet, beside their expectation."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from decoding import base
from decoding.loops import engines
from experiments.measurement.workbench import Bench, Case, Model
from models.base import ALL, EXPERTS
from models.transformer import experts


class Met(NamedTuple):
    """Means over the calls of a loop, and over the layers that have experts."""

    tokens: float  # of a call; padding and rows that have ended are left out
    experts: float  # that its tokens visit, in a layer
    expected: float  # if their choices were independent
    calls: int


def count(bench: Bench, case: Case, prompts: Sequence[list[int]], seed: int) -> Met:
    """Decode all prompts once, round by round, and count what each call meets.

    Args:
        bench: the target, whose layers have experts, and its drafts.
        case: the method and temperature; its width is the paper's.
        prompts: token prompts, in whole batches.
        seed: of the texts.
    """
    config, visited = bench.lm.model.config, []
    rules = [config.layer(i).experts for i in range(config.n_layers)]
    rule = next(e for e in rules if e)
    lm = reporting(bench.lm, lambda chosen: visited.append(np.asarray(chosen)))
    parts = bench.compose(case, lm)
    engine, params = engines.engine(parts), bench.params(lm)
    tokens, found, memory = [], [], None
    for part, keys in bench.batches(prompts, seed):
        limits = [len(p) + bench.new_tokens for p in part]
        given = (params, parts, part, limits, keys, bench.size, memory)
        state = engine.start(*given)
        while not bool(np.asarray(state.done).all()):
            visited.clear()
            state, outcome = engine.step(params, state)
            jax.block_until_ready(state)
            jax.effects_barrier()
            drafted = outcome.tree.kind != base.PAD
            live = np.asarray(drafted & outcome.active[:, None])
            tokens.append(int(live.sum()))
            found.append(np.mean([len({*of[live].flat}) for of in visited[-1]]))
        memory = state.drafter.shared
    expected = float(np.mean([experts.expected(rule, n) for n in tokens]))
    return Met(float(np.mean(tokens)), float(np.mean(found)), expected, len(tokens))


def reporting(lm: Any, keep: Any) -> Model:
    """Return a model that calls `keep(experts int32[L, B, N, k])` on the host.

    In the calls that ask for the logits of all nodes, which those of prompts do not.
    """
    inner = lm.model

    def layers(params, cache, x, block, lo, hi, taps=()):
        asked = (*taps, EXPERTS)
        x, after, hidden = inner.layers(params, cache, x, block, lo, hi, asked)
        chosen = hidden.pop(EXPERTS, None)
        if chosen is not None and block.logits_at == ALL:
            jax.debug.callback(keep, chosen)
        return x, after, hidden

    return Model(inner._replace(layers=layers), lm.params, lm.tokenizer)
