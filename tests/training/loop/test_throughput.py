"""The clock of a training: operations by hand, what is left out, chips by name."""

import json
import types

import jax
import jax.numpy as jnp
import optax
import pytest

from kernels import chips
from models.transformer import rematerialisation
from tests.models import small
from tests.training.loop import killed_run
from training.data import text_corpus
from training.loop import fit, metrics_writer, throughput
from training.objectives.language_models import next_token


def programs(step, *args) -> float:
    return throughput.operations(jax.make_jaxpr(step)(*args).jaxpr)


def test_operations_by_hand():
    """2·M·N·K a product, loops as often as they run, of branches the costliest.

    Five products forward, five for the weights backward and four for what goes in: the
    first one's input has no gradient. Planted: those that are made again are no work.
    """
    weight, x = jnp.ones((4, 4)), jnp.ones((2, 4))
    one = 2 * 2 * 4 * 4

    def loss(weight, x):
        layer = rematerialisation.remat(lambda x: jnp.tanh(x @ weight))
        x = layer(layer(x))
        return jax.lax.scan(lambda x, _: (layer(x), None), x, None, length=3)[0].sum()

    step = jax.value_and_grad(loss)
    assert programs(loss, weight, x) == 5 * one
    assert programs(step, weight, x) == 19 * one
    found = throughput.work(step, weight, x, tokens=7, dtype=jnp.float32, devices=1)
    assert found.operations == 14 * one and found.tokens == 7 and found.rate > 0
    assert programs(step, weight, x) == 19 * one  # recomputation is on again

    def branches(x):
        return jax.lax.cond(x[0, 0] > 0, lambda: x @ weight @ weight, lambda: x)

    assert programs(branches, x) == 2 * one
    batched = jnp.ones((3, 2, 5)), jnp.ones((3, 5, 7))
    assert programs(jnp.matmul, *batched) == 2 * 3 * 2 * 5 * 7


def test_a_transformers_training_step():
    """6 operations a weight in products and token, 12·T²·H·h a row and layer."""
    config, params = small.CONFIG, small.LM.init(jax.random.key(0))
    batch = {"tokens": jnp.zeros((3, 9), jnp.int32)}
    loss = next_token.objective(config).loss
    found = programs(jax.grad(lambda p: loss(p, batch, None)[0]), params)
    layers = [v for k, v in params.items() if k.startswith("layer")]
    weights = sum(x.size for x in jax.tree.leaves(layers) if x.ndim > 1)
    weights += config.vocab_size * config.d_model
    length = 9 - 1  # the last token is predicted and not read
    scores = 12 * length**2 * config.n_heads * config.head_dim * config.n_layers
    assert found == 3 * (6 * weights * length + scores)


def test_the_clock_leaves_evaluations_out(tmp_path, monkeypatch):
    """A second a step, by a clock that evaluations move by 1,000."""
    late = [0.0]
    clock = types.SimpleNamespace(monotonic=lambda: late[0])
    monkeypatch.setattr(metrics_writer, "time", clock)

    class Slow(text_corpus.DataIterator):
        def __next__(self):
            late[0] += 1.0
            return super().__next__()

    def evaluate(params):
        late[0] += 1000.0
        return {"x": 0.0}

    def run(folder) -> list[dict]:
        fit.fit(
            {"table": jnp.zeros((32, 32))},
            killed_run.objective(),
            optax.sgd(0.1),
            Slow(killed_run.stream()),
            folder,
            fit.FitConfig(
                steps=killed_run.STEPS,
                evaluate_every=3,
                log_every=2,
                save_every=6,
                progress=False,
            ),
            evaluate=evaluate,
        )
        return [json.loads(x) for x in (folder / "throughput.jsonl").open()]

    rows = run(tmp_path / "run")
    assert [row["step"] for row in rows] == [2, 4, 6, 8, 10, 12]
    assert all(row["seconds_per_step"] == 1.0 for row in rows)
    assert all(row["tokens_per_s"] == 4 * 16 for row in rows)
    figures = metrics_writer.figures(tmp_path / "run", points=4)
    assert figures["pace"]["tokens_per_s"] == 4 * 16
    assert [step for step, _ in figures["losses"]] == [2, 5, 8, 11]
    monkeypatch.setattr(metrics_writer.Writer, "resume", first_alone)
    assert max(row["seconds_per_step"] for row in run(tmp_path / "fault")) > 100


def first_alone(self, step: int) -> None:
    """The planted fault: the clock runs on through evaluations."""
    self.last = getattr(self, "last", (step, metrics_writer.time.monotonic()))


@pytest.mark.parametrize(
    "kind, name",
    [
        ("TPU v4", "v4"),
        ("TPU v5 lite", "v5e"),
        ("TPU v5", "v5p"),
        ("TPU v5p", "v5p"),
        ("TPU v6 lite", "v6e"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("cpu", None),
    ],
)
def test_chips_by_name(kind, name):
    found = chips.of(types.SimpleNamespace(device_kind=kind))
    assert (found and found.name) == name
