"""Medusa-2: the target's own bytes stay, and the changed model is decoded exactly."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import decoding
import models
from configs.heads import medusa as medusa_config
from configs.heads import medusa2 as config
from decoding import Method, Spec
from models import transformer
from models.errors import ConfigError
from models.surgery import lora
from models.transformer import low_rank, modules
from tests.decoding.drafters import agreement
from training.loop import train_step
from training.objectives.heads import medusa, medusa2
from training.runs import scaffold
from training.teacher import outputs

KEY = jax.random.key(0)


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
    target = outputs.teacher(lm.model)
    step = jax.jit(train_step.make_step(own, optimizer, target=target))
    state = train_step.TrainState(jnp.int32(0), params, optimizer.init(params), None)
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
        teacher = outputs.teacher(lm.model)(lm.params, batch())
        joint = medusa2.objective(lm.model).loss(params, batch(), teacher)
        alike = medusa2.objective(lm.model, distil=True).loss(params, batch(), teacher)
        own = medusa.objective(lm.model).loss(params["heads"], batch(), teacher)
        return joint, alike[0], own[0]

    (joint, metrics), alike, own = losses(params)
    # Head 0 has decay^1.
    np.testing.assert_allclose(joint, metrics["lm"] + 0.2 * 0.8 * own, rtol=1e-5)
    np.testing.assert_allclose(alike, 0.2 * 0.8 * own, rtol=1e-4)  # KL(p || p) = 0


def test_both_learn_and_the_target_keeps_its_bytes():
    lm = loaded()
    before = jax.tree.map(lambda x: np.asarray(x).tobytes(), lm.params)
    (fresh, *_, after), terms = trained(20)
    assert terms[-1] < terms[0] - 0.1
    for name in ("lora", "heads"):
        pairs = zip(jax.tree.leaves(fresh[name]), jax.tree.leaves(after[name]))
        assert any((a != b).any() for a, b in pairs)
    assert before == jax.tree.map(lambda x: np.asarray(x).tobytes(), lm.params)


@pytest.mark.long
def test_the_first_stage_is_the_heads_alone():
    (fresh, _, warmed, after), _ = trained(3, warm=8)  # two steps of four rows
    assert (fresh["heads"]["res"] != warmed["heads"]["res"]).any()

    def same(params) -> bool:
        pairs = zip(jax.tree.leaves(fresh["lora"]), jax.tree.leaves(params["lora"]))
        return all((a == b).all() for a, b in pairs)

    assert same(warmed)
    assert not same(after)  # planted: a step past the stage


def test_the_coefficient_rises_after_the_first_stage():
    """Of 8 rows, over 4 more: 0, sin(pi/4), 1 of it; planted: a ramp with no stage.

    The weight of head 0 is 0.2 decay, decay = 0.8.
    """
    lm = loaded()
    params = medusa2.init(KEY, lm.model, lm.params, heads=2, rank=4)
    target = outputs.teacher(lm.model)

    def weights(warm: int) -> list[float]:
        ramped = medusa2.objective(lm.model, warm=warm, ramp=4)

        @jax.jit
        def term(row):
            given = {**batch(), "row": row[None]}
            teacher = target(lm.params, given)
            loss, metrics = ramped.loss(params, given, teacher)
            plain, _ = medusa.objective(lm.model).loss(params["heads"], given, teacher)
            return (loss - metrics["lm"]) / plain

        return [float(term(jnp.int32(row))) for row in (0, 8, 10, 12, 99)]

    wanted = [0.16, 0.0, 0.16 * 0.5**0.5, 0.16, 0.16]
    np.testing.assert_allclose(weights(8), wanted, atol=1e-5)
    assert abs(weights(0)[0] - wanted[0]) > 0.1
    with pytest.raises(ConfigError, match="ramp=-1"):
        medusa2.objective(lm.model, ramp=-1)


def test_the_changes_learn_at_a_quarter_of_the_rate():
    """Adam's first step is its rate. Planted: a rate for all, as other heads have."""
    recipe = config.get_config()
    params = {"heads": {"head": jnp.ones((2, 3))}, "lora": {"a": jnp.ones((3, 2))}}

    def steps(train) -> dict[str, float]:
        own = scaffold.optimizer(train, 400)

        @jax.jit
        def first(params):
            grads = jax.tree.map(jnp.ones_like, params)
            return own.update(grads, own.init(params), params)[0]

        moved = first(params)
        return {name: float(-jax.tree.leaves(x)[0][0, 0]) for name, x in moved.items()}

    start = recipe.train.rate / (recipe.train.warmup + 1)
    found = steps(recipe.train)
    assert found == pytest.approx({"heads": start, "lora": start / 4}, rel=1e-4)
    alike = steps(medusa_config.get_config().train)
    assert alike["lora"] == pytest.approx(alike["heads"])
    recipe.train.factors.heads_ = 2.0
    with pytest.raises(ConfigError, match=r"given for \['heads_'\]"):
        steps(recipe.train)


@pytest.mark.long
def test_the_changed_model_has_a_text_of_its_own():
    """With the heads its text is its own plain one, not the target's."""
    lm, params = loaded(), trained(20)[0][-1]
    changed, own = lora.model(lm, params)
    tree = Spec("topologies/static", choices=((0,), (1,), (0, 0)))
    fields = {"max_new_tokens": 16, "temperature": 1.0}
    prompts = [list(p) for p in agreement.PROMPTS]
    plain = decoding.generate(changed, prompts, **fields).tokens
    method = Method(Spec("drafters/medusa"), topology=tree)
    drafts = {"heads": own}
    out = decoding.generate(changed, prompts, method, drafts=drafts, **fields)
    assert out.tokens == plain
    # Planted: beside the unchanged target it would not be lossless.
    assert plain != decoding.generate(lm, prompts, **fields).tokens
    bare = lora.model(lm, own)
    assert bare[0].params is lm.params and bare[1] is own


def untied():
    """The target with a head of its own, and changes that are not zero."""
    lm = loaded()
    config = dataclasses.replace(lm.config, tied=False)
    model = transformer.transformer(config)
    params = jax.jit(model.init)(KEY)
    changes = agreement.stirred(lora.init(KEY, params, 2))
    return models.Loaded(model, params), changes


def test_a_change_beside_a_weight_is_the_merged_one():
    """All weights and the head. Planted: v's change in k's place; no change of q."""
    lm, changes = untied()

    @jax.jit
    def merged(changes):
        params = lora.merged(lm.params, changes)
        return transformer.forward(lm.config, params, batch()["tokens"]).logits

    @jax.jit
    def beside(changes):
        teacher = outputs.teacher(lm.model)(lm.params, batch())
        changed = medusa2.changed_teacher(lm.model, changes, batch(), teacher)
        states, head = medusa2.changed_head(changes, changed)
        return head(states)

    found = beside(changes)
    np.testing.assert_allclose(found, merged(changes), rtol=1e-4, atol=1e-4)
    layer = dict(changes["layer_1"])
    swapped = {**layer, "k": layer["v"], "v": layer["k"]}
    without = {**layer, "q": jax.tree.map(jnp.zeros_like, layer["q"])}
    for wrong in (swapped, without):
        assert np.abs(found - merged({**changes, "layer_1": wrong})).max() > 1e-2


def test_dropout_of_a_change():
    """x is dropped in the change alone: 0 or 2 x at a half, anew for each part.

    n = 2,048, level 1e-6: 1,024 of them +- 4.9 deviations of 22.6. Planted: one mask.
    """
    x, eye = jnp.ones((64, 32)), jnp.eye(32)
    pair = (eye, eye[:, None])
    both = low_rank.LowRank(jnp.ones((32, 2, 32)), (pair, pair), KEY, 0.5)
    found = np.asarray(modules.product(x, both)) - 32
    assert set(np.unique(found)) == {0.0, 2.0}
    zeros = found == 0
    assert np.abs(zeros.sum((0, 2)) - 1024).max() < 111
    differ = lambda masks: np.abs((masks[:, 0] != masks[:, 1]).sum() - 1024) < 111
    assert differ(zeros) and not differ(np.stack([zeros[:, 0]] * 2, 1))
    plain = modules.product(x, both.replace(key=None, dropout=0.0))
    np.testing.assert_array_equal(plain, 33.0)
    for wrong in (-0.1, 1.0):
        with pytest.raises(ConfigError, match=f"dropout={wrong}"):
            medusa2.objective(loaded().model, dropout=wrong)


def test_a_product_by_hand():
    target = {"layer_0": {"attention": {"qkv": jnp.ones((3, 2, 4, 5)), "out": SQUARE}}}
    target["layer_0"]["mlp"] = {"up": jnp.ones((3, 2, 4)), "down": jnp.ones((4, 3))}
    own = lora.init(KEY, target, 2)
    shapes = jax.tree.map(lambda x: x.shape, own["layer_0"])
    assert shapes["q"] == {"a": (3, 2), "b": (2, 2, 2, 5)}
    assert shapes["k"] == shapes["v"] == {"a": (3, 2), "b": (2, 2, 1, 5)}
    assert "head" not in own
    own["layer_0"]["up"]["b"] = jnp.ones((2, 1, 4))
    found = lora.merged(target, own)["layer_0"]
    a = own["layer_0"]["up"]["a"]
    wanted = np.ones((3, 2, 4))
    wanted[:, 1] += lora.ALPHA / 2 * a.sum(1)[:, None]
    np.testing.assert_allclose(found["mlp"]["up"], wanted, rtol=1e-6)
    np.testing.assert_array_equal(found["mlp"]["down"], 1.0)
    # An export of version 0.1: one pair for the fused weight.
    old = {"attention_qkv", "attention_out", "mlp_up", "mlp_down"}
    pair = {"a": a, "b": jnp.ones((2, 2, 4))}
    named = {"o": "attention_out", "down": "mlp_down"}
    layer = {named.get(n, n): x for n, x in own["layer_0"].items()}
    qkv = {"a": jnp.ones((3, 2)), "b": jnp.zeros((2, 2, 4, 5))}
    layer = {**layer, "mlp_up": pair, "attention_qkv": qkv}
    layer = {name: x for name, x in layer.items() if name in old}
    found = lora.merged(target, {"layer_0": layer})["layer_0"]
    wanted[:, 0] = wanted[:, 1]
    np.testing.assert_allclose(found["mlp"]["up"], wanted, rtol=1e-6)
    with pytest.raises(ConfigError, match="rank=0"):
        lora.init(KEY, target, 0)
    with pytest.raises(ConfigError, match="no layers"):
        lora.init(KEY, {"table": SQUARE})


SQUARE = jnp.ones((4, 3))
