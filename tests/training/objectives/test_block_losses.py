"""Losses of blocks by hand: anchors, what slots are graded by, and their weights."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.errors import ConfigError
from models.heads import dspark
from models.heads.modules.head_config import CONFIG
from tests.decoding.drafters import agreement
from training import losses
from training.objectives import block_losses
from training.objectives.block_losses import Weights
from training.objectives.heads import dflash, domino
from training.objectives.heads import dspark as objectives
from training.teacher import outputs

KEY = jax.random.key(0)
DRAFTS = 3


def batch(length: int = 24, masked: bool = True) -> dict:
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, agreement.VOCAB, (2, length)).astype(np.int32)
    mask = np.ones(tokens.shape, bool)
    if masked:
        mask[:, :6] = mask[0, 14:17] = False
    return {"tokens": tokens, "loss_mask": mask, "row": np.array([4, 5], np.int32)}


def params():
    target = agreement.target().config
    own = dspark.init(KEY, target, rank=8, layers=1, block=DRAFTS)
    return agreement.stirred(own, 0.3)


def test_anchors_may_be_learned_and_so_may_the_next_token():
    given = batch()
    anchors, live = map(np.asarray, block_losses.drawn(given, 8, 0))
    mask = given["loss_mask"]
    for row in range(2):
        found = anchors[row][live[row]]
        assert len(found) == len(set(found.tolist())) == 8
        assert mask[row][found].all() and mask[row][found + 1].all()
    full = batch(masked=False)
    drawn = np.asarray(block_losses.drawn(full, 8, 0)[0])
    later = np.asarray(block_losses.drawn({**full, "row": full["row"] + 1}, 8, 0)[0])
    assert (later[0] == drawn[1]).all() and (later[1] != drawn[1]).any()
    few = batch(9)
    _, live = block_losses.drawn(few, 5, 0)
    assert np.asarray(live).sum(1).tolist() == [2, 2]  # places 6 and 7 alone


def by_hand(own, given: dict, weights: Weights) -> float:
    """The loss over every anchor, slot after slot, from whole arrays of logits."""
    lm = agreement.target()
    read = objectives.objective(lm.model).taps
    teacher = outputs.teacher(lm.model, read)(lm.params, given)
    pairs = block_losses.guesses(dspark.HEAD, own, lm.model, given, teacher, DRAFTS)
    laws = [np.asarray(draft(states)) for states, draft in pairs]
    p = np.asarray(teacher.head(teacher.hidden[outputs.NORM]))
    tokens, mask = given["tokens"], given["loss_mask"]
    total = whole = 0.0
    for row in range(len(tokens)):
        for a in range(1, tokens.shape[1] - 1):  # row t of `guesses` is of anchor t + 1
            if not (mask[row, a] and mask[row, a + 1]):
                continue
            for j in range(DRAFTS):
                if a + 1 + j >= tokens.shape[1] or not mask[row, a + 1 + j]:
                    break
                q = laws[j][row, a - 1]
                w = np.exp(-j / weights.decay) if weights.decay else 1.0
                ce = float(losses.ce(q, tokens[row, a + 1 + j]))
                tv = float(losses.tv(p[row, a + j], q))
                kl = float(losses.kl(p[row, a + j], q))
                total += w * (weights.ce * ce + 2 * weights.l1 * tv + weights.kl * kl)
                whole += w
    return total / whole


@pytest.mark.parametrize(
    "weights",
    [Weights(0.1, 0.9, decay=4.0), Weights(0.0, kl=1.0)],
    ids=["dspark", "jetspec"],
)
def test_the_loss_is_that_of_every_block(weights):
    """Planted: weights that fall from the second slot on."""
    own, given, lm = params(), batch(), agreement.target()
    objective = block_losses.objective(dspark.HEAD, lm.model, weights, 24)
    teacher = outputs.teacher(lm.model, objective.taps)(lm.params, given)
    found, metrics = objective.loss(own, given, teacher)
    # The first token is no anchor of `guesses`, nor of a row whose first are masked.
    np.testing.assert_allclose(found, by_hand(own, given, weights), rtol=1e-5)
    late = weights._replace(decay=2.0)
    assert abs(float(found) - by_hand(own, given, late)) > 1e-4
    assert set(metrics) == {f"{n}_{j}" for n in ("hit", "alpha") for j in range(DRAFTS)}


def test_kept_activations_change_no_gradient():
    """Planted: the recomputation is there to be left out."""
    own, given, lm = params(), batch(), agreement.target()
    found, texts = [], []
    for remat in (True, False):
        loss = objectives.objective(lm.model, remat=remat)
        teacher = outputs.teacher(lm.model, loss.taps)(lm.params, given)
        of = jax.grad(lambda own, x=loss, t=teacher: x.loss(own, given, t)[0])
        found.append(jax.tree.leaves(of(own)))
        texts.append(str(jax.make_jaxpr(of)(own)))
    assert ["remat" in text for text in texts] == [True, False]
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_the_confidence_head_learns_the_acceptance_rate():
    """Its term by hand; planted: the rate of another slot."""
    own, given, lm = params(), batch(), agreement.target()
    each = [objectives.objective(lm.model, confidence=x) for x in (1.0, 0.0)]
    read = each[0].taps
    teacher = outputs.teacher(lm.model, read)(lm.params, given)
    both, alone = (x.loss(own, given, teacher)[0] for x in each)
    every, live = block_losses.drawn(given, 24, 0)
    blocks = block_losses.gathered(own, given, teacher, every, live)
    slots = block_losses.states(dspark.HEAD, own, lm.model, given, teacher, every, read)
    pairs = block_losses.guesses(dspark.HEAD, own, lm.model, given, teacher, DRAFTS)
    q = jnp.stack([draft(states) for states, draft in pairs], 2)
    q = jnp.roll(q, 1, 1)  # row t of `guesses` is of anchor t + 1
    p = teacher.head(blocks.law)
    rate = losses.alpha(p, q)
    sure = jax.nn.sigmoid(dspark.rated(own, dspark.watched(own, blocks.tokens, slots)))
    weights = blocks.weights * jnp.exp(-jnp.arange(DRAFTS) / 4.0)

    def term(rate) -> float:
        entropy = -(rate * jnp.log(sure) + (1 - rate) * jnp.log(1 - sure))
        return float((weights * entropy).sum() / weights.sum())

    np.testing.assert_allclose(both - alone, term(rate), rtol=1e-4)
    assert abs(float(both - alone) - term(jnp.roll(rate, 1, 2))) > 1e-3


def test_confidences_are_those_that_the_loss_learns_from():
    """Over all blocks whose text goes on; planted: those of the slot before. Heads
    without a confidence head have none."""
    own, given, lm = params(), batch(), agreement.target()
    objective = objectives.objective(lm.model)
    teacher = outputs.teacher(lm.model, objective.taps)(lm.params, given)
    rated, rate, live = objectives.confidences(own, lm.model, given, teacher)
    _, metrics = objective.loss(own, given, teacher)
    apart = np.abs(jax.nn.sigmoid(rated) - rate)
    mean = lambda x: float((live * x).sum() / live.sum())
    assert mean(apart) == pytest.approx(float(metrics["confidence"]), abs=1e-6)
    for j in range(DRAFTS):
        alpha = float((live * rate)[..., j].sum() / live[..., j].sum())
        assert alpha == pytest.approx(float(metrics[f"alpha_{j}"]), abs=1e-6)
    other = np.abs(jax.nn.sigmoid(np.roll(rated, 1, 2)) - rate)
    assert abs(mean(other) - float(metrics["confidence"])) > 1e-4
    bare = dspark.init(KEY, lm.config, rank=8, layers=1, block=3, confidence=False)
    assert objectives.confidences(bare, lm.model, given, teacher) == ()


def test_paced_weights_by_hand():
    """w_j = sum over m >= j of the product of q~ up to m; planted: of q itself."""
    q = np.array([[0.5, 0.2, 0.9], [0.1, 0.7, 0.3]])
    live = np.array([[1, 1, 1], [1, 1, 0]], float)
    smooth = 0.5 * q + 0.5
    wanted = np.zeros_like(q)
    for row in range(2):
        for j in range(3):
            for m in range(j, 3):
                wanted[row, j] += np.prod(smooth[row, : m + 1]) * live[row, m]
    found = block_losses.paced(jnp.asarray(-np.log(q)), jnp.asarray(live))
    np.testing.assert_allclose(found, wanted * live, rtol=1e-5)
    planted = np.cumsum(np.cumprod(q, 1)[:, ::-1], 1)[:, ::-1] * live
    assert not np.allclose(found, planted, rtol=1e-2)


def test_domino_goes_from_the_block_s_law_to_the_corrected_one():
    weights = Weights(blend=10)
    at = lambda row: block_losses.blended(weights, {"row": jnp.array([row])})
    assert (float(at(0).ce), float(at(0).base)) == (0.0, 1.0)
    assert (float(at(5).ce), float(at(5).base)) == (0.5, 0.5)
    assert (float(at(20).ce), float(at(20).base)) == (1.0, 0.0)
    model = agreement.target().model
    assert domino.objective(model, blend=10).taps == dflash.objective(model).taps


@pytest.mark.parametrize(
    "fields", [{"ce": 0.0}, {"decay": -1.0}, {"ce": 0.0, "l1": 1.0, "pace": True}]
)
def test_weights_that_give_no_loss(fields):
    with pytest.raises(ConfigError, match="ce"):
        dflash.objective(agreement.target().model, **fields)
    other = types.SimpleNamespace(config=agreement.target().config)
    with pytest.raises(ConfigError, match="anchors=0"):
        dflash.objective(other, anchors=0)


def test_heads_with_a_draft_vocabulary_only_draft():
    """Planted: the same heads without one."""
    lm, own, given = agreement.target(), params(), batch()
    objective = objectives.objective(lm.model, anchors=4)
    teacher = outputs.teacher(lm.model, objective.taps)(lm.params, given)
    objective.loss(own, given, teacher)
    form = dataclasses.replace(own["backbone"][CONFIG], draft_vocabulary=True)
    kept = jnp.arange(0, agreement.VOCAB, 2)
    small = {**own, "backbone": {**own["backbone"], CONFIG: form, "kept": kept}}
    with pytest.raises(ConfigError, match="draft_vocabulary=True"):
        objective.loss(small, given, teacher)
