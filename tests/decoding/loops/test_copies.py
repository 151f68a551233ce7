"""No round copies a cache: neither the target's nor a draft model's.

Read off the compiled loop of a small transformer, for drafters that call a model in a
`while_loop` of their own, in the branches of a `lax.cond`, or layer by layer.
"""

import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding import Method, Spec
from decoding.conformance import kit, widths
from decoding.loops import block_choice
from models import transformer
from models.heads import dspark, eagle
from models.predictors import exit_predictor

SIZE = 512


def lm(layers: int, heads: int, seed: int):
    """A model whose cache has a size of its own."""
    config = transformer.Config(
        vocab_size=64,
        d_model=16,
        n_layers=layers,
        n_heads=heads,
        n_kv_heads=heads,
        head_dim=8,
        d_ff=16,
        max_positions=SIZE,
        ropes=(transformer.rope(8, 100.0),),
    )
    model = transformer.transformer(config)
    params = model.init(jax.random.key(seed))
    return types.SimpleNamespace(
        model=model, params=params, tokenizer=None, config=config
    )


TARGET, DRAFT = lm(3, 2, 0), lm(2, 3, 1)
CHAIN = Spec("topologies/chain", length=3)
SPECEE = {
    "heads": eagle.init(jax.random.key(2), TARGET.config),
    "exits": exit_predictor.init(jax.random.key(3), 3, 2, 8),
}
BLOCKS = {"heads": dspark.init(jax.random.key(4), TARGET.config, rank=4, layers=2)}
TABLE = Spec("topologies/best_first", nodes=8, depth=3)
METHODS = (
    Method(Spec("drafters/pearl", gamma=3)),
    Method(Spec("drafters/swift", length=3, nodes=8, context=4)),
    Method(Spec("drafters/del_exit", length=3)),
    Method(Spec("drafters/easyspec", group=2), topology=CHAIN),
    Method(Spec("drafters/copyspec_model", gamma=2, copy=4), topology=CHAIN),
    Method(exit=Spec("exits/specee", static=(0, 1))),
    Method(Spec("drafters/s2d", exits=(1,)), topology=CHAIN),
    Method(
        Spec("drafters/model"), topology=Spec("topologies/confidence_stop", length=3)
    ),
    Method(exit=Spec("exits/skipdecode", least=2, tokens=8)),
    Method(Spec("drafters/dspark"), topology=TABLE),
    Method(
        Spec("drafters/sam_decoding", size=4, least=2, inner="drafters/model"),
        topology=CHAIN,
    ),
)
MADE = re.compile(r"= \(?\w+\[([\d,]+)\]\S* (copy|transpose|concatenate|pad)\(")


def copies(
    method: Method, disturb=lambda drafter: drafter, cut: bool = False
) -> list[str]:
    """The instructions that make a new array as large as a layer of either cache."""
    beside = BLOCKS if "heads" in method.needs else {}
    beside = SPECEE if "exits" in method.needs else beside
    run = kit.Run(method, 0.8, lm=TARGET, draft=DRAFT, beside=beside)
    run.alter(drafter=disturb(run.parts.program.drafter), chunk=16)
    if cut:
        widths.cut(run)
    state = run.start([[1, 2, 3], [4]], new=40, size=SIZE)
    kept = jax.tree.leaves((state.caches, state.drafter.row))
    sizes = {int(x.size) for x in kept if x.ndim == 4 and x.shape[2] >= SIZE}
    run.advance(state, 1)
    (loop,) = [c for k, c in run.engine._compiled.items() if k[0] == "advance"]
    found = []
    for line in loop.as_text().splitlines():
        match = MADE.search(line)
        if match and np.prod([int(n) for n in match[1].split(",")]) in sizes:
            found.append(line.strip())
    return found


# Calls in a loop of their own. Those in the branches of a `cond` run below, where a
# second `cond` is around the draft; -m long runs all.
USUAL = ("drafters/pearl",)


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(m, marks=() if m.parts[0].name in USUAL else pytest.mark.long)
        for m in METHODS
    ],
    ids=lambda m: (m.exit or m.drafter).name.split("/")[1],
)
def test_no_round_copies_a_cache(method):
    assert copies(method) == []


NARROW = Method(
    Spec("drafters/model"),
    topology=Spec(
        "topologies/hardware_aware",
        times=((1, 1.0), (2, 1.1), (4, 1.3)),
        choices=((0,), (1,), (0, 0)),
    ),
)


def test_nor_does_a_round_of_narrower_blocks():
    assert copies(NARROW) == []


@pytest.mark.parametrize(
    "method",
    [pytest.param(METHODS[2], id="exit", marks=pytest.mark.long), METHODS[7]],
)
def test_nor_does_a_round_that_chooses_its_width(method):
    """Where drafts are cut and left out: a `cond` around the draft, then a width."""
    assert copies(method, cut=True) == []


@pytest.mark.long
def test_fault_a_choice_of_widths_that_keeps_the_old_state(monkeypatch):
    """Planted: each layer's cache of before is read again after the chosen width ran.

    `lax.switch` copies them too, in releases of JAX before 0.12.
    """
    sound = block_choice.one_of

    def kept(choice, runs, state):
        after, *more = sound(choice, runs, state)
        merge = lambda old, new: jnp.where(choice < 0, old, new)
        return (jax.tree.map(merge, state, after), *more)

    monkeypatch.setattr(block_choice, "one_of", kept)
    assert copies(NARROW)


def test_fault_the_drafter_s_cache_is_not_handed_on():
    """Planted: the target's cache is read beside the draft, not threaded through it."""

    def disturb(drafter):
        def draft(keys, ctx, state):
            nodes, state, _ = drafter.draft(keys, ctx, state)
            return nodes, state, ctx.cache

        return drafter._replace(draft=draft)

    assert copies(METHODS[2], disturb)
