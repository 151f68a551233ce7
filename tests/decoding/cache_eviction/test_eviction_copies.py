"""No round copies a kept cache; one that evicts gathers what stays.

Read off the compiled loop, as in tests/decoding/loops/test_copies.py. The body of an
eviction's loop, which runs where a row is due, is known by its sort.
"""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from decoding import Method, Spec, catalogue
from decoding.conformance import kit
from models.cache_layouts import kept
from tests.decoding.loops.test_copies import DRAFT, MADE, TARGET

pytestmark = pytest.mark.kv

USUAL = ("caches/h2o", "caches/quest")
EVICTING = [name for name in catalogue.of_kind("caches") if name != "caches/dense"]
# Codes are expanded, layer by layer, by the form of attention without a kernel.
EXPANDS = {"caches/gear": 12, "caches/kivi": 12}
BUDGET = 150  # so that no other array has as many elements


def rounds(text: str, slots: int) -> list[str]:
    """The lines of a compiled program, but for computations that sort the slots."""
    lines = []
    for computation in text.split("\n\n"):
        if not re.search(rf",{slots}\]\S* sort\(|,{slots}\].* sort\(", computation):
            lines += computation.splitlines()
    return lines


def slots_of(layer) -> int:
    return getattr(layer, "capacity", 0)


def largest(layer) -> int:
    """The elements of a layer's largest array: its keys, or what it has for them."""
    return max(int(x.size) for x in jax.tree.leaves(layer) if x.ndim > 2)


def copies(name: str) -> list[str]:
    """The instructions of a round that make a new array as large as a layer's keys."""
    card = Spec(name).card.examples
    own = {"budget": BUDGET} if "budget" in card else {}
    if "channels" in card:
        own["channels"] = ((range(4),) * 2,) * 3
    part = kit.spec(name, **{**card, **own})
    tree = Spec("topologies/static", choices=kit.SMALL_TREE)
    method = Method(Spec("drafters/model"), topology=tree, policy=part)
    run = kit.Run(method, 0.8, lm=TARGET, draft=DRAFT).alter(chunk=16)
    state = run.start([[1, 2, 3], [4]], new=40, size=512)
    cache = state.caches["target"]
    layers = cache.layers
    config = TARGET.model.config
    dense = cache.pos.size * config.n_kv_heads * config.head_dim
    sizes = {dense, *(largest(layer) for layer in layers)}
    run.advance(state, 1)
    return [
        line.strip()
        for line in rounds(run.engine.text("advance"), slots_of(layers[0]))
        if (match := MADE.search(line))
        and np.prod([int(n) for n in match[1].split(",")]) in sizes
    ]


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in USUAL else pytest.mark.long) for n in EVICTING],
)
def test_no_round_copies_a_cache(name):
    assert len(copies(name)) <= EXPANDS.get(name, 0)


@pytest.mark.long
def test_fault_the_layer_of_before_is_kept(monkeypatch):
    """Planted: a loop that carries the layer as it was, beside the new one."""

    def once(change, layer, due):
        def body(carry):
            new, old, due = carry
            return change(new, due), old, jnp.zeros_like(due)

        more = lambda carry: carry[2].any()
        new, old, _ = lax.while_loop(more, body, (layer, layer, due))
        k = jnp.where(due.all(), old.store.k, new.store.k)
        return new.replace(store=new.store.replace(k=k))

    monkeypatch.setattr(kept, "once", once)
    assert copies("caches/h2o") != []
