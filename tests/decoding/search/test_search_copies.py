"""No round of a search copies a cache, and a reorder of hypotheses moves no key.

Read off the compiled loop, as in tests/decoding/loops/test_copies.py.
"""

import types

import jax
import numpy as np
import pytest

from decoding import Method, Spec, base, compose
from decoding.hypotheses import slots
from decoding.loops import engines, search
from models import transformer
from models.cache_layouts import quantized
from tests.decoding.loops.test_copies import MADE, lm

NEW, SCRATCH = 100, 256
LAYOUTS = {
    "dense": None,
    "int8": quantized.int8(256),
    "int4": quantized.int4(256),
}


def of_layout(name: str):
    """The small target with a cache of a layout."""
    sound = lm(3, 2, 0)
    if LAYOUTS[name] is None:
        return sound
    model = transformer.transformer(sound.config, cache=LAYOUTS[name])
    return types.SimpleNamespace(
        model=model, params=sound.params, tokenizer=None, config=sound.config
    )


def rounds_alone(program, params, state, least):
    """`search.advance` of rounds that nothing is settled between."""
    more = lambda state: ~state.rows.done.all() & (state.round < search.EVERY)
    step = lambda state: search.round_(program, params, state)
    return jax.lax.while_loop(more, step, state)


def copies(
    target, alter=lambda round_: round_, settles: bool = True, drafter=None
) -> list[str]:
    """The instructions of the loop that make an array as large as a layer's."""
    method = Method(search=Spec("search/beam", width=4), drafter=drafter)
    beside = {"draft": lm(3, 2, 7)} if "draft" in method.needs else {}
    parts = compose.compose(method, target, drafts=beside)
    params = compose.params(target, beside)
    engine = engines.Engine(parts.program)
    prompts, keys = [[1, 2, 3], [4]], engines.request_keys(0, 2, 1)
    limits = [len(p) + NEW for p in prompts]
    rows = engine.start(
        params, parts, prompts, limits, keys, 128, scratch=SCRATCH, whole=True
    )
    caches = [x for x in jax.tree.leaves(rows.caches) if x.ndim == 4]
    sizes = {int(x.size) for x in caches}
    own = (parts.program.select.init(params, 128), base.State())
    state = engine.plant(own, rows, NEW, SCRATCH)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "round_", alter(search.round_))
        if not settles:
            patch.setattr(search, "advance", rounds_alone)
        engine.search(params, state, 1)
    return [
        line.strip()
        for line in engine.text("search").splitlines()
        if (match := MADE.search(line))
        and np.prod([int(n) for n in match[1].split(",")]) in sizes
    ]


@pytest.mark.parametrize(
    "layout", ["dense", "int8", pytest.param("int4", marks=pytest.mark.long)]
)
def test_no_round_copies_a_cache(layout):
    """Settling copies the recent arrays of quantised layers, once in 32 rounds."""
    assert copies(of_layout(layout), settles=layout == "dense") == []


@pytest.mark.parametrize(
    "drafter",
    [Spec("drafters/prompt_lookup", k=3), Spec("drafters/lane_model", m=3, depth=2)],
    ids=lambda part: part.name,
)
def test_no_round_with_drafts_copies_a_cache(drafter):
    """Nor the draft model's, whose nodes lie in the same slots."""
    assert copies(of_layout("dense"), drafter=drafter) == []


def test_fault_rows_are_gathered():
    """Planted: the cache's rows are reordered in every round, as rows of beams are."""

    def alter(round_):
        def gathered(program, params, state):
            state = round_(program, params, state)
            order = state.round % 2 ^ jax.numpy.arange(2)
            caches = {n: c.gather(order) for n, c in state.rows.caches.items()}
            rows = state.rows.replace(caches=caches)
            return state.replace(rows=rows)

        return gathered

    assert copies(of_layout("dense"), alter)


def test_slots_by_hand():
    """A root, two children and a grandchild of the second; then only that one lives."""
    place = jax.jit(
        lambda bits, up, live: slots.placed(
            bits, up, live, slots.held(up, live), jax.numpy.zeros(0, int), 0
        )
    )
    empty = slots.empty(1, 32).bits[0]
    none = np.zeros((2, 1), np.uint32)
    one, two = np.array([True, False]), np.array([True, True])
    slot, seen, bits = place(empty, none, one)
    assert slot.tolist() == [0, -1] and seen[0, 0] == 1
    up = slots.above(bits, np.array([0, 0]))
    slot, seen, bits = place(bits, up, two)
    assert slot.tolist() == [1, 2] and seen[:, 0].tolist() == [0b011, 0b101]
    up = slots.above(bits, np.array([2, 2]))
    slot, seen, bits = place(bits, up, one)
    assert slot.tolist() == [1, -1] and seen[0, 0] == 0b111  # slot 1 is free again
    up = slots.above(bits, np.array([1, -1]))
    order = slots.settling(bits, up, one)
    assert order.order[:3].tolist() == [0, 2, 1]  # the path, in the order of its depth
    assert (int(order.settled), int(order.kept)) == (3, 3)
    bits, moved = slots.reordered(bits, order)
    assert not bits.any() and (np.asarray(moved) == -1).all()


def test_slots_of_drafts_by_hand():
    """Two lanes, of which the second is not there; a draft below the first, and its.

    Planted: one level fewer, and the deeper draft does not see the lane.
    """
    bits = slots.empty(1, 32).bits[0]
    up = np.zeros((2, 1), np.uint32)
    there, parents = np.array([True, False, True, True, False]), np.array([0, 2, 1])
    used = np.zeros(32, bool)
    used[1] = True
    slot, seen, new = slots.placed(bits, up, there, used, parents, 2)
    assert slot.tolist() == [0, -1, 2, 3, -1]
    assert seen[[0, 2, 3], 0].tolist() == [0b1, 0b101, 0b1101]
    assert new[:4, 0].tolist() == [0b1, 0, 0b101, 0b1101]
    shallow = slots.placed(bits, up, there, used, parents, 1)[1]
    assert shallow[3, 0] != seen[3, 0]


def test_settling_keeps_what_branches():
    """Lanes share a root; behind it the live slots close up with their bits."""
    bits = np.zeros((32, 1), np.uint32)
    # Slot 3 is the root, 5 and 9 its children, 20 a child of 9; the rest is stale.
    bits[[3, 5, 9, 20], 0] = 1 << 3, 1 << 3 | 1 << 5, 1 << 3 | 1 << 9, 0
    bits[20] = bits[9] | 1 << 20
    bits[7] = 0xFF
    up = bits[[5, 20]]
    order = slots.settling(jax.numpy.asarray(bits), up, np.array([True, True]))
    assert order.order[:4].tolist() == [3, 5, 9, 20]
    assert (int(order.settled), int(order.kept)) == (1, 4)
    new, moved = slots.reordered(jax.numpy.asarray(bits), order)
    assert [int(moved[i]) for i in (3, 5, 9, 20, 7)] == [-1, 0, 1, 2, -1]
    assert new[:4, 0].tolist() == [0b001, 0b010, 0b110, 0]


def test_settling_every_four_rounds_copies_nothing(monkeypatch):
    monkeypatch.setattr(search, "EVERY", 4)
    assert copies(of_layout("dense")) == []
