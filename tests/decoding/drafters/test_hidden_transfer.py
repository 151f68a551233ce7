"""Hidden Transfer's pseudo states in the loop, and behind the last layer."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding.tree_building import aux_nodes
from models.errors import ConfigError
from models.heads import hidden_transfer as heads
from tests.decoding.drafters import agreement
from training.objectives.heads import hidden_transfer
from training.teacher import outputs

KEY = jax.random.key(0)


@functools.cache
def params():
    return agreement.stirred(heads.init(KEY, agreement.target().config), 0.2)


@functools.cache
def loop():
    name = "drafters/hidden_transfer"
    return agreement.Loop(name, hidden_transfer, params(), 3, late=1)


def test_drafts_in_the_loop_are_those_over_the_text():
    assert loop().agrees()


@pytest.mark.long
def test_fault_born_a_layer_early(monkeypatch):
    """Planted: the loop's pseudo states enter one layer before."""
    sound = heads.wrapped
    monkeypatch.setattr(
        heads, "wrapped", lambda lm, layer, size: sound(lm, layer - 1, size)
    )
    assert not loop.__wrapped__().agrees()


def test_fault_the_states_of_another_node(monkeypatch):
    """Planted: the laws are read behind the root, not the last accepted node."""
    run, sound = loop(), aux_nodes.tree.last_node
    monkeypatch.setattr(aux_nodes.tree, "last_node", lambda verdict: 0 * sound(verdict))
    assert not run.agrees()


def guesses(own, layer: int) -> list:
    lm = agreement.target()
    batch = {"tokens": jnp.asarray([[4, 8, 15, 16, 23, 42, 3, 1]], jnp.int32)}
    taps = hidden_transfer.objective(lm.model, layer=layer).taps

    @jax.jit
    def run(own):
        teacher = outputs.teacher(lm.model, (lm.config.n_layers, *taps))
        seen = teacher(lm.params, batch)
        found = hidden_transfer.guesses(own, lm.model, batch, seen, 3, layer)
        return [seen, *(draft(states) for states, draft in found)]

    return run(own)


def test_behind_the_last_layer_it_is_a_linear_medusa():
    """q_j = softmax(W_lm norm(T_j h)): no layer of the target is between."""
    lm, own = agreement.target(), params()
    teacher, *laws = guesses(own, lm.config.n_layers)
    for j, law in enumerate(laws):
        linear = teacher.hidden[lm.config.n_layers] @ own["transfer"][j]
        wanted = lm.model.head(lm.params, lm.model.norm(lm.params, linear))
        np.testing.assert_allclose(law, wanted, atol=1e-4)
    _, *middle = guesses(own, 1)
    assert np.abs(middle[2] - laws[2]).max() > 0.1  # planted: a layer is between


def test_what_is_trained():
    """The maps alone: a gradient for each of them, and none for the target."""
    lm, own = agreement.target(), params()
    objective = hidden_transfer.objective(lm.model, points=4, feature=1.0)
    tokens = jax.random.randint(KEY, (2, 12), 0, agreement.VOCAB)
    batch = {"tokens": tokens, "row": jnp.arange(2)}
    read = outputs.teacher(lm.model, objective.taps)

    def loss(own, frozen):
        return objective.loss(own, batch, read(frozen, batch))[0]

    ours, theirs = jax.jit(jax.grad(loss, (0, 1)))(own, lm.params)
    assert (jnp.abs(ours["transfer"]).max((1, 2)) > 0).all()
    assert all((g == 0).all() for g in jax.tree.leaves(theirs))
    with pytest.raises(ConfigError, match="layer=5"):
        hidden_transfer.objective(lm.model, layer=5)
