"""FiRST's gates by hand, training against decoding, and both stages' first steps."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding
from configs.predictors import first as recipe
from decoding import Method, Spec
from models.errors import ConfigError
from models.heads.formats import native
from models.predictors import layer_router
from tests.decoding.drafters import agreement
from tests.training.small_trainings import small_target
from training.objectives.predictors import first
from training.runs import layer_router_run

DEPTH, WIDTH, PROMPT = 2, 32, 5
LM = agreement.target(DEPTH)
TOKENS = np.random.default_rng(0).integers(0, agreement.VOCAB, (2, 12)).astype(np.int32)
BATCH = {"tokens": jnp.asarray(TOKENS)}
FROZEN = {"target": LM.params}


def stage_1(params, sparsity):
    own = first.objective(LM.model, sparsity)
    return jax.jit(own.loss)(params, BATCH, FROZEN)


def test_closed_open_and_priced_gates():
    """Open: the model's nats. Closed: those of its embeddings. The price is per layer;
    planted: the sum over layers."""
    every = layer_router.fixed(DEPTH, WIDTH, range(DEPTH))
    loss, metrics = stage_1(every, 0.5)
    one = jax.jit(
        lambda tokens: first.transformer.forward(LM.config, LM.params, tokens)
    )
    logps = np.asarray(jax.nn.log_softmax(one(TOKENS).logits[:, :-1]))
    nats = -np.take_along_axis(logps, TOKENS[:, 1:, None], 2).mean()
    assert float(metrics["ce"]) == pytest.approx(nats, abs=1e-5)
    assert float(loss) == pytest.approx(nats + 0.5, abs=1e-5)
    assert float(metrics["layers"]) == DEPTH

    @jax.jit
    def without(tokens):
        x = LM.model.embed(LM.params, tokens, tokens)
        return LM.model.head(LM.params, LM.model.norm(LM.params, x))

    logps = np.asarray(jax.nn.log_softmax(without(TOKENS)[:, :-1]))
    nats = -np.take_along_axis(logps, TOKENS[:, 1:, None], 2).mean()
    loss, _ = stage_1(layer_router.fixed(DEPTH, WIDTH, []), 0.5)
    assert float(loss) == pytest.approx(nats, abs=1e-5)


def test_routers_close_at_a_price():
    """Gradients reach every router; at a high price all gates fall, at none they need
    not."""
    steps, rate = 20, 1.0

    def closed(sparsity):
        own = first.objective(LM.model, sparsity)

        @jax.jit
        def trained(params):
            def step(params, _):
                grads, metrics = jax.grad(own.loss, has_aux=True)(params, BATCH, FROZEN)
                return jax.tree.map(lambda p, g: p - rate * g, params, grads), metrics

            return jax.lax.scan(step, params, None, steps)

        params, metrics = trained(layer_router.init(DEPTH, WIDTH))
        assert (np.asarray(params["weight"]) != 0).any(1).all()
        return float(metrics["layers"][-1])

    assert closed(10.0) < 0.5 < closed(0.0)


def test_training_runs_what_decoding_runs():
    """`chosen` gives the log-probabilities of decoding's text; planted: soft gates."""
    params, text = layer_router.init(DEPTH, WIDTH), TOKENS[0, :PROMPT].tolist()
    params["bias"] = jnp.asarray([-3.0, 3.0])
    out = decoding.generate(
        LM, [text], Method(exit=Spec("exits/first")), 8, drafts={"exits": params}
    )
    tokens = np.asarray([[*text, *out.tokens[0]]], np.int32)

    def logps(share):
        run = lambda tokens: first.transformer.forward(
            LM.config, LM.params, tokens, share=share
        )
        logits = np.asarray(jax.jit(run)(tokens).logits)[0, PROMPT - 1 : -1]
        every = np.asarray(jax.nn.log_softmax(logits))
        return every[np.arange(8), out.tokens[0]]

    gates: list = []
    np.testing.assert_allclose(
        logps(first.chosen(params, PROMPT, gates)), out.logprobs[0], atol=1e-4
    )
    assert np.abs(logps(first.soft(params, [])) - out.logprobs[0]).max() > 1e-2
    assert out.stats.layer_evals < DEPTH  # else both would run the whole model


def test_wrong_settings():
    with pytest.raises(ConfigError, match="sparsity=-1"):
        first.objective(LM.model, -1)
    with pytest.raises(ConfigError, match="prompt=1"):
        first.adapted(LM.model, 1)


def small(corpus: str):
    """The recipe, for seconds."""
    c = recipe.get_config()
    c.data.update(source=corpus, tokens=64, batch=2, window=16)
    c.train.update(save_every=4, warmup=1, rows_at_once=2)
    c.adapt.update(rank=2, prompt=4, tokens=64)
    c.evaluate.update(tokens=64, searched=64, window=16, prompt=4, draws=2)
    c.sparsities = (0.1,)
    return c


def test_both_stages_train_and_are_graded(corpus, tmp_path):
    """Two steps of each; the target and, in stage 2, the routers stay as they are."""
    lm, c = small_target(2), small(corpus)
    before = jax.tree.map(np.asarray, lm.params)
    figures = layer_router_run.run(c, tmp_path, lm)
    assert json.loads((tmp_path / "figures.json").read_text()) == figures
    row = figures["prices"]["0.1"]
    assert row["steps"] == 2 and row["routers"]["layers"] == 2  # b = +2 keeps all
    assert row["routers"]["nats"] == pytest.approx(figures["dense"]["nats"], abs=1e-5)
    assert row["adapted"]["nats"] != row["routers"]["nats"]
    assert len(row["random"]) == 2 and row["best"]["set"] == [0, 1]
    exported = native.load(tmp_path / "export" / "0.1", lm)
    layer_router.check(exported, 2, 16)
    assert (np.asarray(exported["weight"]) != 0).any()
    changes = native.load(tmp_path / "export" / "0.1_lora", lm)
    assert any(
        np.asarray(x).any() for x in jax.tree.leaves(changes["layer_0"]["q"]["b"])
    )
    jax.tree.map(np.testing.assert_array_equal, before, lm.params)
    out = decoding.generate(
        lm, [[5, 6, 7]], Method(exit=Spec("exits/first")), 4, drafts={"exits": exported}
    )
    assert out.stats.layer_evals == 2


def test_the_best_fixed_set_is_of_training_text(corpus, tmp_path):
    """Of one layer it is the better one of two there. Planted: held-out rows that say
    the opposite are not asked."""
    training = layer_router_run.Training(small(corpus), tmp_path, small_target(2))
    nats = [training.fixed([i], training.seen)["nats"] for i in range(2)]
    held, training.held = training.held, []
    assert training.best_set(1) == [int(np.argmin(nats))]
    assert training.best_set(2) == [0, 1]
    training.held = held
    best = training.best(1)
    assert best["nats"] == training.fixed(best["set"])["nats"]
    assert best["layers"] == pytest.approx(1, abs=1e-6) and len(best["each"]) == 4


def test_rows_are_graded_together_as_alone(corpus, tmp_path):
    """Planted: another row's figures."""
    training = layer_router_run.Training(small(corpus), tmp_path, small_target(2))
    params = layer_router.fixed(2, 16, [1])
    each = np.asarray(training.grade(params)["each"])
    rows = [{"tokens": x[None]} for batch in training.held for x in batch["tokens"]]
    alone = np.asarray([training.grade(params, rows=[row])["nats"] for row in rows])
    np.testing.assert_allclose(each, alone, atol=1e-5)
    assert np.abs(each - alone[::-1]).max() > 1e-3
