"""Logits of a part of the positions at a time: one step trains as on all at once."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.decoding.drafters import agreement
from training.loop import train_step
from training.objectives.heads import falcon, hydra
from training.runs import draft_head_run
from training.teacher import outputs

KEY = jax.random.key(0)
PART = 7  # divides no batch here

# What each draws in its parts: Hydra++ its masks, Falcon its labels.
DRAWN = {
    "hydra": {"soft": 1.0, "dropout": 0.3},
    "falcon": {"noise": 0.0, "soft": 1.0, "hard": 1.0},
}


def batch() -> dict:
    tokens = np.random.default_rng(0).integers(0, agreement.VOCAB, (2, 12))
    return {"tokens": jnp.asarray(tokens, jnp.int32), "row": jnp.arange(2, 4)}


def stepped(name: str, part: int, **fields) -> tuple:
    """Make one real update of rate 1: its loss, and its gradient as a difference."""
    lm, kind = agreement.target(), draft_head_run.module(name)
    params = agreement.stirred(
        kind.init(KEY, lm.model, lm.params, **kind.EXAMPLE["init"])
    )
    objective = kind.objective(
        lm.model, **{**kind.EXAMPLE["objective"], **fields, "part": part}
    )
    optimizer = optax.sgd(1.0)
    target = outputs.teacher(lm.model, objective.taps)
    step = jax.jit(train_step.make_step(objective, optimizer, target=target))
    state = train_step.first_state(params, optimizer, False)
    after, metrics = step(state, batch(), lm.params)
    moved = jax.tree.map(lambda a, b: a - b, params, after.params)
    return metrics["loss"], moved


def same(one, other) -> bool:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.allclose(a, b, rtol=1e-3, atol=2e-5) for a, b in pairs)


QUICK = ("medusa",)  # Hydra and Falcon take the step below, where they draw


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.long)
        for name in draft_head_run.names()
    ],
)
def test_a_step_in_parts_is_the_step(name):
    """Loss and gradients, where nothing is drawn; the parts do not divide the batch."""
    found, wanted = stepped(name, PART), stepped(name, 0)
    assert any(np.abs(x).max() > 0 for x in jax.tree.leaves(wanted[1]))
    assert same(found, wanted)


@pytest.mark.parametrize(
    "name", [pytest.param("hydra", marks=pytest.mark.long), "falcon"]
)
def test_what_is_drawn_does_not_depend_on_the_parts(name, monkeypatch):
    """Planted: numbers within a part, so that each part draws what the first draws."""
    wanted = stepped(name, 0, **DRAWN[name])
    assert same(stepped(name, PART, **DRAWN[name]), wanted)
    within = lambda shape: outputs.numbered(shape) % PART
    for module in (hydra, falcon):
        monkeypatch.setattr(module, "numbered", within)
    assert not same(stepped(name, PART, **DRAWN[name]), wanted)


def test_parts_heads_and_blocks_have_masks_of_their_own():
    """Of 40 positions in parts of 8. Planted: numbers within a part."""
    ones, places = jnp.ones((1, 40, 16)), outputs.numbered((1, 40))

    @jax.jit
    def masks(places):
        drop = hydra.dropped(0.5, 0, batch())
        own = lambda head, block: outputs.by_part(
            lambda x, n: drop(head, n, block, x), 8, ones, places
        )
        return own(0, 0), own(1, 0), own(0, 1)

    def distinct(mask) -> int:
        return len({part.tobytes() for part in np.asarray(mask).reshape(5, -1)})

    first, head, block = masks(places)
    assert distinct(first) == 5
    assert (first != head).any() and (first != block).any() and (head != block).any()
    assert distinct(masks(places % 8)[0]) == 1
