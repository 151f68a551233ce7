"""LUD's placeholders in the loop, what they learn, and texts in units."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding.tree_building import aux_nodes
from models.errors import ConfigError
from models.heads import ppd as heads
from tests.decoding.drafters import agreement
from training.objectives.heads import lud
from training.teacher import outputs

KEY = jax.random.key(0)


@functools.cache
def params():
    lm = agreement.target()
    return agreement.stirred(heads.init(KEY, lm.model, lm.params, 3), 0.3)


@functools.cache
def loop():
    return agreement.Loop("drafters/lud", lud, params(), 3, late=1)


def test_drafts_in_the_loop_are_those_over_the_text():
    assert loop().agrees()


def test_fault_the_placeholders_of_another_node(monkeypatch):
    """Planted: the laws are read behind the root, not the last accepted node."""
    run, sound = loop(), aux_nodes.tree.last_node
    monkeypatch.setattr(aux_nodes.tree, "last_node", lambda verdict: 0 * sound(verdict))
    assert not run.agrees()


def test_units_are_runs_of_sure_tokens():
    """Slot i of t: tokens t + 2 .. t + 2 + i, by the target's chance of each."""
    lm = agreement.target()
    tokens = jax.random.randint(KEY, (2, 12), 0, agreement.VOCAB)
    batch = {"tokens": tokens, "row": jnp.arange(2)}

    @jax.jit
    def run(own):
        teacher = outputs.teacher(lm.model, tuple(range(2)))(lm.params, batch)
        p = jax.nn.softmax(teacher.head(teacher.hidden[outputs.NORM]))
        marked = lud.units(batch, teacher, 0.02, 3, 5)
        objective = lud.objective(lm.model, 0.02, points=0)
        return p, marked, objective.loss(own, batch, teacher)[1]

    p, marked, metrics = run(params())
    following = np.asarray(tokens)[:, 1:, None]
    chance = np.take_along_axis(np.asarray(p)[:, :-1], following, 2)
    sure = chance[..., 0] >= 0.02  # of token t + 1 at t
    for i, found in enumerate(marked):
        size = 10 - i
        wanted = np.all([sure[:, 1 + j :][:, :size] for j in range(i + 1)], 0)
        np.testing.assert_array_equal(found[:, :size], wanted)
        np.testing.assert_allclose(metrics[f"unit_{i}"], wanted.mean(), atol=1e-6)
    assert 0 < sure.mean() < 1  # planted: all or nothing would show little
    assert metrics["unit_2"] < metrics["unit_0"]
    with pytest.raises(ConfigError, match=r"alpha=1\.5"):
        lud.objective(lm.model, alpha=1.5)
