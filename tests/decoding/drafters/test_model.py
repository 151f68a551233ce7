"""The drafter `model` on an exact model: it proposes its model's best tokens."""

import dataclasses

import jax
import numpy as np
import pytest

import models
from decoding import Method, Spec, base
from decoding.conformance import kit
from decoding.loops import decode, engines
from models import transformer
from models.cache_layouts import held
from models.synthetic import toy
from tests.models import blocks, small

METHOD = kit.cases()["model-static"]
DRAFTER = kit.DRAFT  # whose law the drafts follow


def ranked(context: list[int], rank: int) -> int:
    return int(np.argsort(-toy.logits(DRAFTER.params, context), kind="stable")[rank])


def test_worked_example():
    """Each node of the tree is the candidate of its rank after the path to it."""
    method = Method(METHOD.drafter, topology=METHOD.topology)
    run = kit.Run(method)
    state = run.advance(run.start(), 2)
    program = run.parts.program

    def draft(params, state):
        ctx = decode.context(program, params, state)
        return program.drafter.draft(state.key, ctx, state.drafter)[0]

    nodes = jax.jit(draft)(run.params, state)
    assert nodes.draw == base.POINT and int(nodes.calls) == program.drafter.depth
    order = ((), *sorted(kit.SMALL_TREE, key=lambda p: (len(p), p)))
    for row in range(len(kit.PROMPTS)):
        text = np.asarray(state.tokens)[row, : int(state.length[row])].tolist()
        known = {(): text}
        for path in order[1:]:
            before = known[path[:-1]]
            known[path] = [*before, ranked(before, path[-1])]
        assert nodes.tokens[row].tolist() == [known[p][-1] for p in order]


def test_fault_another_model():
    """Planted: the other model's arg-max path is not what is proposed."""
    other = kit.DRAFT if DRAFTER is kit.TARGET else kit.TARGET
    text = list(kit.PROMPTS[3])
    paths = [kit.greedy_by_hand(m.params, text, 3) for m in (DRAFTER, other)]
    assert paths[0] != paths[1]


@pytest.mark.long
def test_windows_of_the_draft_model_are_held(monkeypatch):
    """The target as its own draft, all of whose drafts hold, past six windows.

    Planted: it holds less than its window.
    """
    for name in ("EVERY", "STEP"):
        monkeypatch.setattr(held, name, 8)
    config = dataclasses.replace(
        small.CONFIG, windows=(12,), max_positions=128, n_layers=1, eos=()
    )
    lm = transformer.transformer(config)
    lm = models.Loaded(lm, blocks.numpy_params(lm))
    method = Method(Spec("drafters/model"), topology=Spec("topologies/chain", length=3))
    prompts = [small.random_tokens(i, n).tolist() for i, n in enumerate((40, 5))]

    def calls() -> list[int]:
        run = kit.Run(method, lm=lm, beside={"draft": lm})
        state = run.advance(run.start(prompts, new=40, size=96))
        cache, _ = state.drafter.row
        assert isinstance(cache.layers[0], held.HeldLayer)
        assert (np.asarray(cache.layers[0].shift) > 0).all()
        return np.asarray(state.counters.target_calls).tolist()

    assert calls() == [10, 10]  # of four tokens each
    windowed = held.windowed
    narrow = lambda make, windows, width: windowed(make, (1,), width)
    with engines.apart():
        monkeypatch.setattr(held, "windowed", narrow)
        assert min(calls()) > 10
