"""The width that pays: chosen by hand, learned, and plain decoding where none does."""

import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding import Method, Spec, base, tree
from decoding.block_width.policy import PAPER
from decoding.conformance import kit as programs
from decoding.loops import block_choice, decode
from decoding.topologies import hardware_aware
from decoding.tree_building import draft_model
from decoding.verifiers import recursive_rejection
from models.base import ModelOutput
from models.errors import MethodError
from tests.decoding.topologies import kit

CHOICES = ((0,), (1,), (0, 0))  # prior values 1/2, 1/4, 1/4
STEEP = ((1, 1.0), (2, 2.0), (4, 4.0))  # a width costs what plain calls cost
FLAT = ((1, 1.0), (2, 1.2), (4, 1.5))


def planned(topology: base.Topology, state: base.State | None = None) -> list[int]:
    state = topology.init(1) if state is None else state
    return np.flatnonzero(state.shared.planned).tolist()


@pytest.mark.parametrize(
    ("times", "draft_ms", "nodes"),
    [
        (FLAT, 0.0, [0, 1, 2, 3]),  # 2 / 1.5 beats 1.5 / 1.2
        (((1, 1.0), (2, 1.2), (4, 1.7)), 0.0, [0, 1]),  # 1.5 / 1.2 beats 2 / 1.7
        (FLAT, 0.3, [0]),  # 1.5 / 1.5 and 2 / 2.1 do not beat 1
        (STEEP, 0.0, [0]),
    ],
)
def test_the_width_by_hand(times, draft_ms, nodes):
    topology = hardware_aware.topology(times, CHOICES, draft_ms)
    assert planned(topology) == nodes


def test_where_nothing_pays_nothing_is_drafted():
    topology = hardware_aware.topology(STEEP, CHOICES)
    nodes = kit.grown(topology, 3, kit.Q, 0)
    assert nodes.tokens.shape == (3, 4) and topology.blocks == (1, 2, 4)
    assert (np.asarray(nodes.kind).sum(1) == 1).all()
    assert (np.asarray(nodes.calls) == -1).all()  # the root's call is saved too
    assert (np.asarray(nodes.slots)[:, 0] == -1).all()


def outcome(topology, count: int, active=(True, True)) -> base.Outcome:
    """A round of two rows on the whole tree that accepts `count` nodes of (0, 0)."""
    nodes = kit.grown(topology, 2, kit.Q, 0)
    path = jnp.array([[1, 3], [1, 3]])
    counts = jnp.full((2,), count)
    verdict = base.Verdict(path, counts, counts)
    out = ModelOutput(None, {})
    return base.Outcome(nodes, verdict, out, None, jnp.array(active))


def test_what_a_round_teaches():
    """Of children (0), (1) of the root the first is accepted, and its child in turn."""
    topology = hardware_aware.topology(FLAT, CHOICES, forget=0.5)
    state = topology.init(2)
    for count, hits, tries in (
        (2, [[2, 0], [2, 0]], [[2, 2], [2, 0]]),
        (1, [[3, 0], [1, 0]], [[3, 3], [3, 0]]),
        (0, [[1.5, 0], [0.5, 0]], [[3.5, 3.5], [1.5, 0]]),
    ):
        whole = state.shared.replace(planned=jnp.ones(4, bool))
        state = topology.adapt(base.State((), whole), outcome(topology, count))
        np.testing.assert_allclose(state.shared.hits, hits)
        np.testing.assert_allclose(state.shared.tries, tries)


def test_rejections_narrow_the_block_and_time_widens_it():
    topology = hardware_aware.topology(FLAT, CHOICES, forget=0.5)
    adapt = jax.jit(topology.adapt)
    state, round_ = topology.init(2), outcome(topology, 0)
    for _ in range(3):
        state = adapt(state, round_)
    assert planned(topology, state) == [0]
    none = round_.replace(tree=round_.tree.replace(kind=jnp.zeros((2, 4), jnp.int32)))
    for _ in range(12):
        state = adapt(state, none)
    assert len(planned(topology, state)) > 1


def test_fault_finished_rows_teach():
    """Planted: rows that are done are counted like the others."""
    topology = hardware_aware.topology(FLAT, CHOICES)
    state = topology.init(2)
    still = topology.adapt(state, outcome(topology, 0, (False, False)))
    assert programs.same(still, state)
    faulty = outcome(topology, 0, (False, False)).replace(active=jnp.ones(2, bool))
    assert not programs.same(topology.adapt(state, faulty), state)


def test_law():
    """Three widths, of which the prior chooses the largest."""
    times = ((1, 1.0), (3, 1.2), (6, 1.3))
    choices = ((0,), (1,), (0, 0), (0, 1), (1, 0))
    topology = hardware_aware.topology(times, choices, draw=base.NO_REPLACE)
    accepted, fit = kit.accepted_and_fit(topology, recursive_rejection.verifier())
    assert fit > kit.LEVEL and accepted > 0.3


@pytest.mark.parametrize(("last", "width"), [(0, 1), (1, 2), (2, 4), (3, 4), (5, 6)])
def test_the_narrowest_block_that_holds_the_nodes(last, width):
    """Widths of 1, 2, 4 and 6 nodes; the second row has the most."""
    zeros = jnp.zeros((2, 6), jnp.int32)
    kind = zeros.at[:, 0].set(base.CANDIDATE).at[1, : last + 1].set(base.CANDIDATE)
    program: Any = types.SimpleNamespace(width=PAPER, widths=(1, 2, 4, 6))
    draft = base.TokenTree(zeros, zeros, kind)
    live, choice, _ = block_choice.narrowest(program, None, draft)
    assert (live == (kind != base.PAD)).all()
    runs = [lambda _, w=w: (jnp.int32(w),) for w in program.widths]
    (ran,) = block_choice.one_of(choice, runs, jnp.int32(0))
    assert int(ran) == width


def resting(plan: list[int], rounds: int) -> tuple[programs.Run, decode.DecodeState]:
    """A perfect draft model that rests for some rounds and then drafts `plan`."""
    spec = Spec("topologies/hardware_aware", times=STEEP, choices=CHOICES)
    method = Method(Spec("drafters/model"), topology=spec)
    run = programs.Run(method, 0.0, draft=programs.TARGET)
    state = run.advance(run.start(), rounds)
    assert (np.asarray(state.counters.draft_calls) == 0).all()
    assert (np.asarray(state.counters.candidates) == 0).all()
    wanted = jnp.isin(jnp.arange(4), jnp.array(plan))
    shared = state.drafter.shared.replace(planned=wanted)
    return run, state.replace(drafter=state.drafter.replace(shared=shared))


@pytest.mark.long
def test_it_catches_up_after_a_rest():
    """After 20 rounds of one token the draft reads them in, and all is accepted."""
    run, state = resting([0, 1, 3], 20)
    state, outcome = run.engine.step(run.params, state)
    assert outcome.verdict.count.tolist() == [2] * len(programs.PROMPTS)
    assert tree.depths(outcome.tree).max() == 2
    texts = programs.texts(run.advance(state))
    plain = [
        programs.greedy_by_hand(programs.TARGET.params, p, programs.NEW)
        for p in programs.PROMPTS
    ]
    assert texts == plain


@pytest.mark.long
def test_fault_a_rest_is_forgotten(monkeypatch):
    """Planted: the root counts as run when it was not; drafts are no longer perfect."""
    sound = draft_model.commit

    def commit(cache, topology, outcome):
        slots = jnp.maximum(outcome.tree.slots, 0)
        return sound(
            cache, topology, outcome.replace(tree=outcome.tree.replace(slots=slots))
        )

    monkeypatch.setattr(draft_model, "commit", commit)
    monkeypatch.setattr(programs.engines, "_ENGINES", {})  # nothing compiled before
    run, state = resting([0, 1, 3], 20)
    _, outcome = run.engine.step(run.params, state)
    assert outcome.verdict.count.tolist() != [2] * len(programs.PROMPTS)


def test_bad_arguments():
    with pytest.raises(MethodError, match="a block of 1"):
        hardware_aware.topology(((2, 1.0),), CHOICES)
    with pytest.raises(MethodError, match="forget=2"):
        hardware_aware.topology(FLAT, CHOICES, forget=2.0)
