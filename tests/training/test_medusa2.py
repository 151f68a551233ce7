"""Medusa-2: the target's own bytes stay, and the changed model is decoded exactly."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import decoding
import models
from decoding import Method, Spec
from models.errors import ConfigError
from models.heads import lora
from tests.methods.drafters import agreement
from training import fit
from training import teacher as teachers
from training.objectives import medusa, medusa2

KEY = jax.random.key(0)
pytestmark = pytest.mark.usefixtures("quick_compilation")


def loaded():
    lm = agreement.target()
    return models.Loaded(lm.model, lm.params)


def batch(row: int = 0) -> dict:
    start = np.random.default_rng(0).integers(0, agreement.VOCAB, (4, 1))
    tokens = (start + np.arange(16)) % agreement.VOCAB
    return {"tokens": jnp.asarray(tokens, jnp.int32), "row": jnp.arange(row, row + 4)}


@functools.cache
def trained(steps: int, warm: int = 0):
    """Before and after steps on texts that count: params, and the losses of each."""
    lm = loaded()
    own = medusa2.objective(lm.model, warm=warm)
    params = medusa2.init(KEY, lm.model, lm.params, heads=2, rank=4)
    optimizer = optax.adam(0.01)
    target = teachers.teacher(lm.model)
    step = jax.jit(fit.make_step(own, optimizer, target=target))
    state = fit.TrainState(jnp.int32(0), params, optimizer.init(params), None)
    found, terms = [params], []
    for i in range(steps):
        state, metrics = step(state, batch(4 * i), lm.params)
        found.append(state.params)
        terms.append(float(metrics["lm"]))
    return found, terms


def test_it_begins_as_the_target_with_medusa_s_heads():
    """B = 0: the changed model is the target, bit for bit, and the second term is
    Medusa-1's."""
    lm = loaded()
    params = medusa2.init(KEY, lm.model, lm.params, heads=2, rank=4)
    changed = lora.merged(lm.params, params["lora"])
    same = jax.tree.map(lambda a, b: bool((a == b).all()), changed, lm.params)
    assert all(jax.tree.leaves(same))

    @jax.jit
    def losses(params):
        teacher = teachers.teacher(lm.model)(lm.params, batch())
        joint = medusa2.objective(lm.model).loss(params, batch(), teacher)
        alike = medusa2.objective(lm.model, distil=True).loss(params, batch(), teacher)
        heads = medusa.objective(lm.model).loss(params["heads"], batch(), teacher)
        return joint, alike[0], heads[0]

    (joint, metrics), alike, heads = losses(params)
    np.testing.assert_allclose(joint, metrics["lm"] + 0.2 * heads, rtol=1e-5)
    np.testing.assert_allclose(alike, 0.2 * heads, rtol=1e-4)  # KL(p || p) = 0


def test_both_learn_and_the_target_keeps_its_bytes():
    lm = loaded()
    before = jax.tree.map(lambda x: np.asarray(x).tobytes(), lm.params)
    (fresh, *_, after), terms = trained(20)
    assert terms[-1] < terms[0] - 0.1
    for name in ("lora", "heads"):
        pairs = zip(jax.tree.leaves(fresh[name]), jax.tree.leaves(after[name]))
        assert any((a != b).any() for a, b in pairs)
    assert before == jax.tree.map(lambda x: np.asarray(x).tobytes(), lm.params)


def test_the_first_stage_is_the_heads_alone():
    (fresh, _, warmed, after), _ = trained(3, warm=8)  # two steps of four rows
    assert (fresh["heads"]["res"] != warmed["heads"]["res"]).any()

    def same(params) -> bool:
        pairs = zip(jax.tree.leaves(fresh["lora"]), jax.tree.leaves(params["lora"]))
        return all((a == b).all() for a, b in pairs)

    assert same(warmed)
    assert not same(after)  # planted: a step past the stage


def test_the_changed_model_has_a_text_of_its_own():
    """With the heads its text is its own plain one, not the target's."""
    lm, params = loaded(), trained(20)[0][-1]
    changed, heads = lora.model(lm, params)
    tree = Spec("topologies/static", choices=((0,), (1,), (0, 0)))
    fields = {"max_new_tokens": 16, "temperature": 1.0}
    prompts = [list(p) for p in agreement.PROMPTS]
    plain = decoding.generate(changed, prompts, **fields).tokens
    method = Method(Spec("drafters/medusa"), topology=tree)
    drafts = {"heads": heads}
    out = decoding.generate(changed, prompts, method, drafts=drafts, **fields)
    assert out.tokens == plain
    # Planted: beside the unchanged target it would not be lossless.
    assert plain != decoding.generate(lm, prompts, **fields).tokens
    bare = lora.model(lm, heads)
    assert bare[0].params is lm.params and bare[1] is heads


def test_a_product_by_hand():
    target = {"layer_0": {"attention": {"qkv": jnp.ones((3, 2, 2)), "out": SQUARE}}}
    target["layer_0"]["mlp"] = {"up": jnp.ones((3, 2, 4)), "down": jnp.ones((4, 3))}
    own = lora.init(KEY, target, 2)
    own["layer_0"]["mlp_up"]["b"] = jnp.ones((2, 2, 4))
    found = lora.merged(target, own)["layer_0"]
    a = own["layer_0"]["mlp_up"]["a"]
    wanted = 1 + lora.ALPHA / 2 * a.sum(1)[:, None, None] * np.ones((3, 2, 4))
    np.testing.assert_allclose(found["mlp"]["up"], wanted, rtol=1e-6)
    np.testing.assert_array_equal(found["mlp"]["down"], 1.0)
    with pytest.raises(ConfigError, match="rank=0"):
        lora.init(KEY, target, 0)
    with pytest.raises(ConfigError, match="no layers"):
        lora.init(KEY, {"table": SQUARE})


SQUARE = jnp.ones((4, 3))
