"""The schedule in training against decoding, its loss by hand, and a short run."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding
from configs.predictors import skipdecode as recipe
from decoding import Method, Spec
from models import transformer
from models.errors import ConfigError
from models.heads.formats import native
from models.surgery import lora
from tests.decoding.drafters import agreement
from tests.training.small_trainings import small_target
from training.objectives.predictors import skipdecode
from training.runs import scheduled_layers_run

DEPTH, PROMPT, NEW = 4, 5, 8
LM = agreement.target(DEPTH)
TOKENS = np.random.default_rng(0).integers(0, agreement.VOCAB, (2, 13)).astype(np.int32)
NUMBERS = {"most": 4, "least": 2, "tokens": 6, "warm": 1}
ONE = jax.jit(
    lambda tokens, gates: (
        transformer.forward(
            LM.config,
            LM.params,
            tokens,
            share=lambda i, x: jnp.broadcast_to(gates[i], x.shape[:2]),
        ).logits
    )
)


def gates(prompt: int = PROMPT, **fields) -> jax.Array:
    return skipdecode.scheduled(DEPTH, prompt, PROMPT + NEW, **{**NUMBERS, **fields})


def logps(tokens, own) -> np.ndarray:
    every = np.asarray(jax.nn.log_softmax(ONE(tokens, own)[:, PROMPT - 1 : -1]))
    return np.take_along_axis(every, tokens[:, PROMPT:, None], 2)[..., 0]


def test_training_runs_what_decoding_runs():
    """Planted: the schedule begins one token late."""
    text = TOKENS[0, :PROMPT].tolist()
    method = Method(exit=Spec("exits/skipdecode", **NUMBERS))
    out = decoding.generate(LM, [text], method, NEW)
    tokens = np.asarray([[*text, *out.tokens[0]]], np.int32)
    assert tokens.shape[1] == PROMPT + NEW
    due = out.logprobs[0]
    np.testing.assert_allclose(logps(tokens, gates())[0], due, atol=1e-4)
    assert np.abs(logps(tokens, gates(PROMPT + 1))[0] - due).max() > 1e-3
    # The last place writes nothing.
    layers = np.asarray(gates()).sum(0)[PROMPT - 1 : -1].mean()
    assert out.stats.layer_evals == pytest.approx(layers)


def test_the_loss_is_of_the_text_under_the_schedule():
    """Planted: the prompt counts, too; the whole model's."""
    own = skipdecode.objective(LM.model, PROMPT, 2, 6, 4)
    changes = lora.init(jax.random.key(0), LM.params, 2, head=False)
    batch, frozen = {"tokens": jnp.asarray(TOKENS)}, {"target": LM.params}
    grads, metrics = jax.jit(jax.grad(own.loss, has_aux=True))(changes, batch, frozen)
    found = float(metrics["ce"])
    assert found == pytest.approx(-logps(TOKENS, gates()).mean(), abs=1e-5)
    assert abs(found + logps(TOKENS, gates(least=4)).mean()) > 1e-3
    every = np.asarray(jax.nn.log_softmax(ONE(TOKENS, gates())[:, :-1]))
    whole = -np.take_along_axis(every, TOKENS[:, 1:, None], 2).mean()
    assert abs(found - whole) > 1e-3
    layers = np.asarray(gates()).sum(0)[PROMPT - 1 : -1].mean()
    assert float(metrics["layers"]) == pytest.approx(layers)
    assert float(own.weight(batch)) == 2 * NEW
    for i in range(DEPTH):  # each layer runs somewhere
        assert np.abs(np.asarray(grads[f"layer_{i}"]["down"]["b"])).max() > 0


def test_a_prompt_is_needed():
    with pytest.raises(ConfigError, match="prompt=0"):
        skipdecode.objective(LM.model, 0, 2, 6)


def test_a_run_trains_under_the_schedule_and_under_a_set(corpus, tmp_path):
    """Both change the target, which stays as it is, in two steps."""
    c = recipe.get_config()
    c.data.update(source=corpus, tokens=64, batch=2, window=16)
    c.train.update(save_every=4, warmup=1, rows_at_once=2)
    c.adapt.update(rank=2, prompt=4)
    c.evaluate.update(tokens=64, searched=64, window=16, prompt=4)
    c.budgets, c.tokens, c.warm = ((2, 1), (2, 1)), 4, 0
    lm = small_target(2)
    before = jax.tree.map(np.asarray, lm.params)
    figures = scheduled_layers_run.run(c, tmp_path, lm)
    assert json.loads((tmp_path / "figures.json").read_text()) == figures
    assert figures["budgets"]["2_1"]["steps"] == 2
    count = figures["budgets"]["2_1"]["count"]
    assert figures["sets"][0] == [0, 1] and len(figures["sets"]) == 2
    fixed = figures["fixed"][str(count)]
    assert fixed["set"] == figures["sets"][2 - count]
    assert fixed["nats_before"] != fixed["nats_after"]
    for name in ("2_1", f"fixed_{count}"):
        changes = native.load(tmp_path / "export" / name, lm)
        assert np.asarray(changes["layer_1"]["down"]["b"]).any()
    jax.tree.map(np.testing.assert_array_equal, before, lm.params)
    c.budgets = ((3, 1),)
    with pytest.raises(ConfigError, match=r"has \(3, 1\): use warm=0 < min"):
        scheduled_layers_run.run(c, tmp_path, lm)
