"""Trees among a part of the vocabulary are those of the whole with -inf outside."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding import base, transform_chain
from decoding.catalogue import Spec
from decoding.transforms import repetition_penalty, temperature, top_k
from decoding.tree_building import grow
from tests.decoding.drafters import kit

V, IDS, ROWS = 24, np.arange(1, 24, 2), 3
SCORES = np.random.default_rng(0).normal(size=(V, len(IDS)), scale=2).astype("f4")
NOISE = jnp.asarray(np.random.default_rng(1).gumbel(size=(9, ROWS, V)), jnp.float32)
OTHERS = (
    "dyspec",
    "confidence_stop",
    "chain",
    "static",
    "sequoia",
    "specinfer",
    "rsd_c",
    "rsd_s",
    "hardware_aware",
)
NAMES = ["eagle2", *(pytest.param(name, marks=pytest.mark.long) for name in OTHERS)]
NAMELESS = (temperature.transform(0.9), top_k.transform(9))


def spread(scores):
    whole = jnp.full((*scores.shape[:-1], V), -jnp.inf)
    return whole.at[..., IDS].set(scores)


def grown(topology, part: grow.Part | None, parts, widths: list[int]):
    """A tree by scores that depend on the last token; `widths` gets the noise's."""
    chain = transform_chain.chain(*parts)

    def noise(position, ids=None):
        drawn = NOISE[position[0]] if ids is None else NOISE[position[0]][:, ids]
        widths.append(drawn.shape[-1])
        return drawn

    ctx = kit.context([[0]] * ROWS, 4)
    state = jax.vmap(chain.init)(ctx.tokens, ctx.length)
    ctx = base.Context(
        **{**vars(ctx), "law": chain, "transform": state, "noise": noise}
    )
    values = (lambda x: x) if part else spread

    def call(cache, above, block, level):
        return values(jnp.asarray(SCORES)[block.tokens]), (), cache

    root = values(jnp.broadcast_to(jnp.asarray(SCORES)[0], (ROWS, len(IDS))))
    args = (kit.keys(ROWS), topology.init(ROWS), root, (), part)
    return grow.sprout(call, (), ctx.length, ctx, topology, *args)[0]


def both(topology, parts=NAMELESS, ids=IDS):
    """Trees among all tokens and among a part, and the widths of the part's noise."""
    widths: list[int] = []

    @jax.jit
    def trees():
        part = grow.Part(jnp.asarray(ids, jnp.int32), spread)
        whole = grown(topology, None, parts, [])
        return whole, grown(topology, part, parts, widths)

    return *jax.device_get(trees()), set(widths)


def same(one: base.TokenTree, other: base.TokenTree) -> bool:
    live = np.asarray(one.kind) != base.PAD
    return (
        np.array_equal(one.kind, other.kind)
        and np.array_equal(one.parents[live], other.parents[live])
        and np.array_equal(one.tokens[live], other.tokens[live])
    )


def topology_of(name: str, draw: str) -> base.Topology:
    spec = Spec(f"topologies/{name}")
    return spec.module.topology(**spec.module.CARD.examples, draw=draw)


@pytest.mark.parametrize("name", NAMES)
def test_a_part_grows_what_the_whole_grows(name):
    whole, part, widths = both(topology_of(name, base.COUPLED))
    assert same(whole, part) and widths <= {len(IDS)}
    assert set(np.asarray(part.tokens[:, 1:]).flat) <= {0, *IDS}


def test_chosen_drafts_too():
    topology = topology_of("eagle2", base.POINT)
    assert same(*both(topology)[:2])
    wrong = both(topology, ids=np.arange(len(IDS)))  # planted: places for ids
    assert not same(*wrong[:2])


def test_transforms_that_read_ids_get_the_whole():
    penalty = (repetition_penalty.transform(3.0, V), *NAMELESS)
    whole, part, widths = both(topology_of("eagle2", base.COUPLED), penalty)
    assert same(whole, part) and widths == {V}


@pytest.mark.long
def test_verifiers_that_read_laws_get_the_whole():
    whole, part, _ = both(topology_of("rsd_s", base.NO_REPLACE))
    assert same(whole, part) and part.logits.shape[-1] == V
    np.testing.assert_allclose(whole.logits, part.logits)


def test_fault_a_bias_that_says_it_is_nameless():
    def apply(state, logits, aux):
        return logits - 0.3 * jnp.arange(logits.shape[0])

    whole, part, _ = both(
        topology_of("eagle2", base.POINT), (NAMELESS[0]._replace(apply=apply),)
    )
    assert not same(whole, part)
